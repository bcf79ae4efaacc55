"""SIGUSR1 and Ctrl-C: from the first line of the command to the end of the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import IRIS, Command
from helpers.mpijob import environment

import nnmpi
from nnmpi import signals
from nnmpi.run.files import atomic

TRAIN = ("-m", "nnmpi.train", "--json", *IRIS, "--epochs", "2", "--save", "m")

COMMANDS = [
    (["-m", "--lr", "1"], ["python", "-m", "nnmpi.train", "--lr", "1"], True),
    (["-m"], ["python", "-X", "importtime", "-m", "nnmpi.train"], True),
    (["-m"], ["python", "-mnnmpi.train"], True),
    (["-m", "nnmpi.train"], ["python", "-m", "nnmpi.simulate", "nnmpi.train"], False),
    (["-c", "-m", "nnmpi.train"], ["python", "-c", "import nnmpi", "-m", "nnmpi.train"], False),
    (["job.py"], ["python", "job.py"], False),
    ([""], ["python"], False),
]


@pytest.mark.parametrize(("argv", "given", "expected"), COMMANDS)
def test_only_the_command_notes_signals_at_import(
    argv: list[str], given: list[str], expected: bool
) -> None:
    assert signals.is_command(argv, given) is expected


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGUSR1, 130), (signal.SIGINT, -signal.SIGINT)], ids=str
)
def test_a_signal_while_modules_are_imported(number: int, status: int, tmp_path: Path) -> None:
    """The interpreter tells what it imports; SIGINT, which a background process may ignore, is
    made to act.
    """
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "os.execv(sys.executable, sys.argv[1:])"
    )
    command = (sys.executable, "-X", "importtime", *TRAIN)
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-c", code, *command],
            cwd=tmp_path,
            env=environment({}),
            stdout=out,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stderr is not None
        for line in process.stderr:
            if b" numpy." in line:
                process.send_signal(number)
                break
        rest = process.stderr.read()
    assert process.returncode == status, rest[-1000:]
    assert b"Traceback" not in rest
    assert (tmp_path / "m").exists() == (b'"stopped"' in (tmp_path / "out").read_bytes())
    assert (tmp_path / "m").exists() == (number == signal.SIGUSR1)


def test_sigusr1_after_the_end_is_ignored(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, *TRAIN, "--quiet"],
        cwd=tmp_path,
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert b'"done"' in process.stdout.readline()
        while process.poll() is None:
            process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        assert (process.returncode, process.stderr.read()) == (0, b"")


INTERRUPTED = {
    "before the file is replaced": ("fsync", "nothing was saved"),
    "after it is replaced": ("replace", "the trained model was saved to m"),
}


@pytest.mark.parametrize("case", INTERRUPTED.values(), ids=INTERRUPTED)
def test_a_second_ctrl_c_says_what_was_saved(
    case: tuple[str, str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, words = case
    original = getattr(os, name)

    def then_interrupted(*arguments: Any) -> None:
        original(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    files = {*os.listdir(), "m"}
    for old in (False, True):
        if old:
            nnmpi.save({"old": nnmpi.tensor(1.0).numpy()}, "m")
            words += ", and m is as it was before the run" if "nothing" in words else ""
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, name, then_interrupted)
            completed = command(*IRIS, "--epochs", "2", "--save", "m", "--quiet")
        assert (completed.status, completed.err) == (130, f"nnmpi.train: interrupted; {words}\n")
        assert [e["event"] for e in completed.events] == ["failed"]
        assert {*os.listdir(), "m"} == files
        assert Path("m").exists() == (old or "nothing" not in words)
        Path("m").unlink(missing_ok=True)
    assert signal.getsignal(signal.SIGINT) is before
