"""`nnmpi NAME` is `python -m nnmpi.NAME`; completion; wrong names."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.commands import Completed

import nnmpi
from nnmpi import __main__
from nnmpi.commands import COMMANDS
from nnmpi.completion import script
from nnmpi.io.output.plot import AXES

Run = Callable[..., Completed]
TRAIN = ["train", "--model", "iris-mlp", "--data", "iris", "--epochs", "1", "--json"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `nnmpi ARGUMENTS` in this process, whose modules are executed anew."""

    def run(*arguments: str) -> Completed:
        monkeypatch.setattr(sys, "argv", ["nnmpi", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "nnmpi", *arguments])
        for name in COMMANDS:  # runpy warns of a module that is imported already
            for module in (f"nnmpi.{name}", f"nnmpi.{name}.__main__"):
                monkeypatch.delitem(sys.modules, module, raising=False)
        try:
            status: object = __main__.main()
        except SystemExit as ended:
            status = ended.code
        return Completed(status, *capsys.readouterr())

    return run


def completed(words: str, shell: str = "bash") -> list[str]:
    """What the shell offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in words.split(" "))
    ask = f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _nnmpi"
    calls = "emulate sh; setopt kshglob noshglob braceexpand\n" * (shell == "zsh")  # as it does
    text = f'{script(shell)}{calls}{ask}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    run = subprocess.run(
        [shell], input=text, capture_output=True, check=True, text=True, timeout=60
    )
    assert run.stderr == ""
    last = words.rpartition(" ")[2]  # compgen of zsh leaves it to zsh to compare with it
    return [word for word in run.stdout.split() if shell != "zsh" or word.startswith(last)]


def test_the_version_and_the_list_of_commands(here: Run) -> None:
    assert here("--version") == (0, f"nnmpi {nnmpi.__version__}\n", "")
    listed = here("--help")
    assert (listed.status, listed.err) == (0, "")
    assert all(f"  {name} " in listed.out for name in COMMANDS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trian", "nnmpi: no command 'trian'; did you mean train?; nnmpi --help lists all"),
        ("xyz", "nnmpi: no command 'xyz'; nnmpi --help lists all"),
        ("a\x1bb", "nnmpi: no command 'a\\x1bb'; nnmpi --help lists all"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_nearest_one(name: str, words: str, here: Run) -> None:
    assert here(name) == (2, "", f"{words}\n")
    assert here().status == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_own_help(name: str, here: Run) -> None:
    run = here(name, "--help")
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith(f"usage: nnmpi {name} ")


@pytest.mark.skipif(not find_spec("matplotlib"), reason="matplotlib is not installed")
def test_a_run_and_its_picture(tmp_path: Path, here: Run) -> None:
    log, out = tmp_path / "run.jsonl", tmp_path / "run.svg"
    run = here(*TRAIN, "--log", str(log))
    assert (run.status, run.err, run.events[-1]["event"]) == (0, "", "done")
    assert here("plot", str(log), "--out", str(out), "--x", "steps") == (0, "", "")
    assert out.read_text().startswith("<?xml")
    assert here("train", "--epochs", "0").status == 2
    assert here("plot", "no.jsonl").status == 2


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_options_and_values(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    assert completed("nnmpi tra", shell) == ["train"]
    assert completed("nnmpi train --dty", shell) == ["--dtype"]
    assert completed("nnmpi train --device ", shell) == ["cpu", "cuda", "auto"]
    assert completed("nnmpi train --device = c", shell) == ["cpu", "cuda"]  # bash's words
    assert completed("nnmpi train --device=c", shell) == ["--device=cpu", "--device=cuda"]  # zsh's
    assert completed("nnmpi train --model ir", shell) == ["iris-mlp"]
    assert completed("nnmpi train --data mn", shell) == ["mnist"]
    assert completed("nnmpi train --logger t", shell) == ["tensorboard:", "trackio:"]
    assert completed("nnmpi train --epochs 1 --allreduce r", shell) == ["ring"]
    assert completed("nnmpi train --save ", shell) == []  # of files, by the shell
    assert completed("nnmpi simulate coll", shell) == ["collective"]
    assert "--algorithm" in completed("nnmpi simulate collective --", shell)
    assert completed("nnmpi plot run.jsonl --x ", shell) == [*AXES]
    assert completed("nnmpi checkpoint ", shell)[-1] == "export"
