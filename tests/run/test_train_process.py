"""The command as a process: on a terminal, on a full disk, and when Ctrl-C is pressed."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import parameters_sha256

import nnmpi
from nnmpi import train
from nnmpi.nn.models import iris_mlp, mlp

IRIS = ("--model", "iris-mlp", "--data", "iris")
LONG = ("--model", "mlp:20-8-3", "--data", "synthetic:20:3:50000", "--epochs", "100000")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds
# python -m nnmpi.train, also where the tests run in the background, deaf to Ctrl-C
HEEDS_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("nnmpi.train", run_name="__main__", alter_sys=True)
"""
STUCK = """
import time
from pathlib import Path
from nnmpi import nn

class Stuck(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        if self.training:
            Path("under-way").touch()
            time.sleep(600)
        return super().forward(x)

def slow():
    Path("under-way").touch()
    time.sleep(600)
"""


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    fixed = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | fixed | more


def run(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nnmpi.train", *arguments],
        cwd=folder,
        env=environment(**options.pop("env", {})),
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=PATIENCE,
        **options,
    )


@contextmanager
def started(folder: Path, *arguments: str, **files: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The command under way; whatever happens, it is over when the block is."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C, *arguments], cwd=folder, env=environment(), **files
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


# ---- as a process


def test_a_process_says_what_is_wrong_and_exits_with_2(tmp_path: Path) -> None:
    told = run(tmp_path, "--epochs", "0")
    words = "nnmpi.train: epochs 0 must be at least 1\n"
    assert (told.returncode, told.stdout, told.stderr) == (2, "", words)


def test_without_cuda_there_is_no_cuda_device(tmp_path: Path) -> None:
    told = run(tmp_path, "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (told.returncode, told.stdout) == (2, "")
    assert re.fullmatch(r"nnmpi\.train: no CUDA device: .*; use --device cpu\n", told.stderr)


def test_a_model_may_be_a_module_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from nnmpi.nn.models import iris_mlp as build")
    own, known = (
        run(tmp_path, "--model", model, "--data", "iris", "--quiet")
        for model in ("mine:build", "iris-mlp")
    )
    assert (own.returncode, own.stderr) == (0, "")
    one, other = (json.loads(told.stdout)["parameters_sha256"] for told in (own, known))
    assert one == other


# ---- on a terminal


def seen(terminal: int) -> str:
    """What a terminal shows until nobody writes to it any more."""
    text, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux's way of saying that it is over
            return text.decode()
        if not piece:
            return text.decode()
        text += piece
    raise AssertionError("it took too long")


@pytest.mark.parametrize("piped", ["none", "stderr", "stdout"])
def test_a_terminal_gets_a_bar_and_words(tmp_path: Path, piped: str) -> None:
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        files = {name: theirs for name in ("stdout", "stderr") if name != piped}
        if piped != "none":
            files[piped] = os.open(tmp_path / "piped", os.O_WRONLY | os.O_CREAT)
        with started(tmp_path, *IRIS, "--epochs", "2", "--log", "log", **files) as process:
            os.close(theirs)
            text = seen(ours)
            assert process.wait(PATIENCE) == 0
    finally:
        os.close(ours)
    words = "" if piped == "none" else (tmp_path / "piped").read_text()
    log = (tmp_path / "log").read_text()
    if piped == "stdout":
        assert (text, words) == ("", log)
        return
    assert words == ""
    assert re.search(r"\d+%\|.*\| \d/4 \[", text)
    for sentence in (r"iris-mlp \(403 parameters\)", "epoch   1 ", "epoch   2 ", "done: accuracy "):
        assert re.search(rf"(^|[\r\n]){sentence}", text), text
    assert "{" not in text
    assert len([json.loads(line) for line in log.splitlines()]) == 4


# ---- Ctrl-C


def test_ctrl_c_ends_after_a_step_and_saves(tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("wb") as out,
        (tmp_path / "err").open("wb") as err,
        started(tmp_path, *LONG, "--save", "m.safetensors", stdout=out, stderr=err) as process,
    ):
        wait_for(lambda: b'"epoch"' in (tmp_path / "out").read_bytes())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert (tmp_path / "err").read_text() == ""
    events = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [e["event"] for e in events] == ["start", *["epoch"] * (len(events) - 2), "stopped"]
    assert events[-1]["steps"] == events[-2]["steps"] < events[0]["steps"]
    model = mlp(20, 8, 3)
    model.load_state_dict(nnmpi.load(tmp_path / "m.safetensors"))
    assert parameters_sha256(model) == events[-1]["parameters_sha256"]


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    arguments = ("--model", "stuck:Stuck", "--data", "iris", "--save", "m.safetensors")
    arguments += ("--log", "log")
    with (
        (tmp_path / "err").open("wb") as err,
        started(tmp_path, *arguments, stdout=subprocess.DEVNULL, stderr=err) as process,
    ):
        wait_for((tmp_path / "under-way").exists)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):  # the step goes on
            process.wait(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert (tmp_path / "err").read_text() == "nnmpi.train: interrupted; nothing was saved\n"
    assert not (tmp_path / "m.safetensors").exists()
    last = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert last == {"event": "failed", "error": "KeyboardInterrupt", "steps": 0}


def test_ctrl_c_before_the_first_step_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    with (
        (tmp_path / "err").open("wb") as err,
        started(tmp_path, "--model", "stuck:slow", stderr=err) as process,
    ):
        wait_for((tmp_path / "under-way").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert (tmp_path / "err").read_text() == "nnmpi.train: interrupted before the first step\n"


# ---- no room


def test_a_reader_that_goes_ends_the_run_without_a_word(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    told = run(tmp_path, *IRIS, "--save", "m.safetensors", stdout=writer)
    os.close(writer)
    assert (told.returncode, told.stderr) == (1, "")
    assert not (tmp_path / "m.safetensors").exists()


def test_what_is_trained_is_saved_when_its_reader_goes(tmp_path: Path) -> None:
    arguments = (*LONG, "--save", "m.safetensors", "--log", "log")
    err = (tmp_path / "err").open("wb")
    with err, started(tmp_path, *arguments, stdout=subprocess.PIPE, stderr=err) as process:
        assert process.stdout is not None
        assert b"start" in process.stdout.readline()
        assert b"epoch" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 1
    assert (tmp_path / "err").read_text() == ""
    *_, epoch, failed = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (epoch["event"], failed["event"]) == ("epoch", "failed")
    assert failed["error"] == "cannot write <stdout>: Broken pipe"
    model = mlp(20, 8, 3)
    model.load_state_dict(nnmpi.load(tmp_path / "m.safetensors"))
    short = run(tmp_path, *LONG, "--steps", str(failed["steps"]))  # the same, to the end
    assert json.loads(short.stdout.splitlines()[-1])["parameters_sha256"] == (
        parameters_sha256(model)
    )


def test_a_closed_stdout_is_a_quiet_one(tmp_path: Path) -> None:
    told = subprocess.run(
        ["sh", "-c", 'exec "$0" -m nnmpi.train "$@" >&-', sys.executable, *IRIS, "--log", "log"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["event"] == "done"


@pytest.mark.parametrize("target", ["stdout", "log"])
def test_a_full_disk_gives_one_line(tmp_path: Path, target: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        if target == "stdout":
            told, name = run(tmp_path, *IRIS, stdout=full), "<stdout>"
        else:
            told, name = run(tmp_path, *IRIS, "--log", "/dev/full"), "/dev/full"
            failed = json.loads(told.stdout)
            assert (failed["event"], failed["steps"]) == ("failed", 0)
    assert told.returncode == 1
    assert told.stderr == f"nnmpi.train: cannot write {name}: No space left on device\n"


def test_no_room_for_the_model_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    path = tmp_path / "m.safetensors"
    nnmpi.save(iris_mlp().state_dict(), path)
    before = path.read_bytes()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "from nnmpi.train import main; sys.exit(main(sys.argv[1:]))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, *IRIS, "--save", str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert told.returncode == 1
    events = [json.loads(line)["event"] for line in told.stdout.splitlines()]
    assert events[-2:] == ["epoch", "failed"]
    assert re.fullmatch(r"nnmpi\.train: cannot save .*: File too large; name.*\n", told.stderr)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_permission_is_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may write anywhere, so that the answer of the system is made up here."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert train.main([*IRIS, "--save", str(tmp_path / "m.safetensors")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert f"no permission to write in {tmp_path}" in err
