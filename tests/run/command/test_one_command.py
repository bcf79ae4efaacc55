"""`nnmpi NAME` is `python -m nnmpi.NAME`; completion; wrong names."""

import pytest
from helpers.commands import Command
from helpers.completion import completed, in_each_shell

import nnmpi
from nnmpi.commands import COMMANDS


def test_the_version_and_the_list_of_commands(here: Command) -> None:
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
def test_a_wrong_name_is_one_line_with_the_nearest_one(
    name: str, words: str, here: Command
) -> None:
    assert here(name) == (2, "", f"{words}\n")
    assert here().status == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_own_help(name: str, here: Command) -> None:
    run = here(name, "--help")
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith(f"usage: nnmpi {name} ")


@in_each_shell
def test_completion_knows_commands_options_and_values(shell: str) -> None:
    assert completed("nnmpi tra", shell) == ["train"]
    assert completed("nnmpi train --dty", shell) == ["--dtype"]
    assert completed("nnmpi train --device ", shell) == ["cpu", "cuda", "auto"]
    assert completed("nnmpi train --device = c", shell) == ["cpu", "cuda"]  # bash's words
    assert completed("nnmpi train --device=c", shell) == ["--device=cpu", "--device=cuda"]  # zsh's
    assert completed("nnmpi train --model ir", shell) == ["iris-mlp"]
    assert completed("nnmpi train --data mn", shell) == ["mnist"]
    assert completed("nnmpi train --epochs 1 --allreduce r", shell) == ["ring"]
    assert completed("nnmpi train --save ", shell) == []  # of files, by the shell
    assert completed("nnmpi checkpoint ", shell)[-1] == "export"
