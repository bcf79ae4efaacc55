"""SIGUSR1 and Ctrl-C at the end of the command."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import IRIS, Command
from helpers.mpijob import environment

import nnmpi
from nnmpi import train
from nnmpi.run import command as run_command
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


def test_a_rank_that_is_interrupted_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status of Ctrl-C; they would wait for it."""
    ended = []
    one_of_two = SimpleNamespace(rank=1, size=2, abort=lambda *how: ended.append(how))

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "job", lambda: one_of_two)
    assert run_command.on_ranks("nnmpi.tokenize", interrupted, "") == 130
    assert train.interrupted(one_of_two, " before the first step") == 130
    assert ended == [("interrupted", 130), ("interrupted before the first step", 130)]


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
