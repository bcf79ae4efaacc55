"""The command as a process: terminal, Ctrl-C, closed pipe, full disk."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import IRIS
from helpers.mpijob import environment, outcome_of
from helpers.programs import python
from helpers.runs import but_steps, parameters_sha256
from helpers.terminals import seen, terminal

import nnmpi
from nnmpi import train
from nnmpi.nn.models import mlp

RING = "collective --algorithm ring --ranks 4 --bytes 1MB"
LONG = ("--model", "mlp:20-8-3", "--data", "synthetic:20:3:10000", "--epochs", "100000", "--json")
LONG += ("--lr-schedule", "constant")  # stopped early, it makes the steps of a shorter run
TIMEOUT = 200.0  # seconds
# python -m nnmpi.train with SIGINT enabled: processes in the background inherit that it is ignored
WITH_SIGINT = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("nnmpi.train", run_name="__main__", alter_sys=True)
"""
STUCK = """
import time
from pathlib import Path

def slow():
    Path("training").touch()
    time.sleep(600)
"""


@contextmanager
def started(folder: Path, *arguments: str, **files: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The running command, which is killed at the end of the block."""
    command = [sys.executable, "-c", WITH_SIGINT, *arguments]
    env = environment({"PYTHONUNBUFFERED": ""})
    process = subprocess.Popen(command, cwd=folder, env=env, **files)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not what():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.02)


# ---- as a process


def test_a_missing_cuda_device_is_an_error() -> None:
    done = python("-m", "nnmpi.train", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert (done.status, done.out) == (2, "")
    assert re.fullmatch(r"nnmpi\.train: no CUDA device: .*; use the device cpu\n", done.err)


# ---- on a terminal


@pytest.mark.parametrize("piped", ["none", "stderr", "stdout"])
def test_a_terminal_gets_a_bar_and_text_and_a_pipe_text_alone(tmp_path: Path, piped: str) -> None:
    ours, theirs = terminal()
    try:
        files = {name: theirs for name in ("stdout", "stderr") if name != piped}
        if piped != "none":
            files[piped] = os.open(tmp_path / "piped", os.O_WRONLY | os.O_CREAT)
        with started(tmp_path, *IRIS, "--epochs", "2", "--log", "log", **files) as process:
            os.close(theirs)
            text = seen(ours, TIMEOUT)
            assert process.wait(TIMEOUT) == 0
    finally:
        os.close(ours)
    words = "" if piped == "none" else (tmp_path / "piped").read_text()
    if piped == "stdout":
        assert text == ""
        assert words.replace("\n", "").isprintable()
        text = words
    else:
        assert words == ""
        assert re.search(r"\d+%\|.*\| \d/4 \[", text)
    for sentence in (r"iris-mlp \(403 parameters\)", "epoch   1 ", "epoch   2 ", "done: accuracy "):
        assert re.search(rf"(^|[\r\n]){sentence}", text), text
    assert "{" not in text
    log = (tmp_path / "log").read_text()
    assert len(but_steps(map(json.loads, log.splitlines()))) == 4


# ---- Ctrl-C


def test_ctrl_c_stops_after_a_step_and_saves(tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("wb") as out,
        (tmp_path / "err").open("wb") as err,
        started(tmp_path, *LONG, "--save", "m.safetensors", stdout=out, stderr=err) as process,
    ):
        wait_for(lambda: b'"event": "epoch"' in (tmp_path / "out").read_bytes())
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    assert (tmp_path / "err").read_text() == ""
    events = but_steps(map(json.loads, (tmp_path / "out").read_text().splitlines()))
    assert [e["event"] for e in events] == ["start", *["epoch"] * (len(events) - 2), "stopped"]
    assert events[-1]["steps"] == events[-2]["steps"] < events[0]["steps"]
    model = mlp(20, 8, 3)
    model.load_state_dict(nnmpi.load(tmp_path / "m.safetensors"))
    assert parameters_sha256(model) == events[-1]["parameters_sha256"]


def test_ctrl_c_before_the_first_step_interrupts_at_once(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    with (
        (tmp_path / "err").open("wb") as err,
        started(tmp_path, "--model", "stuck:slow", stderr=err) as process,
    ):
        wait_for((tmp_path / "training").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    assert (tmp_path / "err").read_text() == "nnmpi.train: interrupted before the first step\n"


# ---- outputs that fail


def test_the_model_is_saved_when_a_pipe_is_closed(tmp_path: Path) -> None:
    arguments = (*LONG, "--save", "m.safetensors", "--log", "log")
    err = (tmp_path / "err").open("wb")
    with err, started(tmp_path, *arguments, stdout=subprocess.PIPE, stderr=err) as process:
        assert b"start" in process.stdout.readline()
        assert b"step" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT) == 1
    assert (tmp_path / "err").read_text() == ""
    *_, told, failed = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (told["event"] in ("step", "epoch", "passes"), failed["event"]) == (True, "failed")
    assert failed["error"] == "cannot write <stdout>: Broken pipe"
    model = mlp(20, 8, 3)
    model.load_state_dict(nnmpi.load(tmp_path / "m.safetensors"))
    short = python("-m", "nnmpi.train", *LONG, "--steps", str(failed["steps"]))  # to the end
    digest = json.loads(short.out.splitlines()[-1])["parameters_sha256"]
    assert digest == parameters_sha256(model)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("command", "what"), [(f"train {' '.join(IRIS)}", "<stdout>"), (f"simulate {RING}", "output")]
)
def test_a_full_disk_is_a_one_line_error(command: str, what: str) -> None:
    words = f"{sys.executable} -m nnmpi.{command} > /dev/full"
    done = outcome_of(["bash", "-c", words], environment({}))
    name = command.split()[0]
    assert done.status == 1
    assert done.err == f"nnmpi.{name}: cannot write {what}: No space left on device\n"


def test_missing_permission_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """os.access is replaced, because root may write anywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert train.main([*IRIS, "--save", str(tmp_path / "m.safetensors")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert f"no permission to write in {tmp_path}" in err
