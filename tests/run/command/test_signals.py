"""SIGUSR1 and Ctrl-C at the end of the command."""

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
from nnmpi.run.files import atomic

TRAIN = ("-m", "nnmpi.train", "--json", *IRIS, "--epochs", "2", "--save", "m")


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
