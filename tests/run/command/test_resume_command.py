"""Exit statuses of runs that are suspended, killed and resumed, as processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.commands import IRIS
from helpers.mpijob import UNASKED, descendants, environment, kill, launcher
from helpers.runs import but_steps

import nnmpi
from nnmpi.io.output.log_file import events_of, runs_of

TRAIN = (
    *(sys.executable, "-m", "nnmpi.train", "--json", *IRIS, "--batch-size", "4"),
    *("--epochs", "30", "--allreduce", "ring"),
)
SAVES = ("--checkpoint-dir", "c")
LONG = ("--epochs", "100000")


class Ran(NamedTuple):
    """What a command did."""

    status: int
    events: list[dict[str, Any]]
    err: str


def run(folder: Path, ranks: int, *more: str, act: Callable[[Any], None] | None = None) -> Ran:
    """Runs the command on so many ranks, and acts when the first epoch is over."""
    start = [*launcher(sys.executable), "-n", str(ranks)] if ranks else []
    with subprocess.Popen(
        [*start, *TRAIN, *more],
        cwd=folder,
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            lines = []
            if act is not None:
                while not lines or '"epoch"' not in lines[-1][:20]:
                    lines.append(job.stdout.readline())
                    assert lines[-1], "it ended before the first epoch"
                act(job)
            out, err = job.communicate(timeout=200)
        except BaseException:
            kill(job)
            raise
    whole = [line for line in [*lines, *out.splitlines()] if line.rstrip().endswith("}")]
    return Ran(job.returncode, [json.loads(line) for line in whole], UNASKED.sub("", err))


def sends(number: signal.Signals) -> Callable[[Any], None]:
    return lambda job: job.send_signal(number)


def kills_a_rank(job: Any) -> None:
    if not (ranks := [process for process in descendants(job.pid) if is_rank(process)]):
        pytest.skip("found no rank among the processes of mpirun")
    os.kill(ranks[-1], signal.SIGKILL)


def is_rank(process: int) -> bool:
    command = ["ps", "-ww", "-o", "args=", "-p", str(process)]  # whatever COLUMNS says
    shown = subprocess.run(command, check=False, capture_output=True).stdout
    return b"nnmpi.train" in shown and b" -n " not in shown


def test_a_killed_rank_ends_the_job(tmp_path: Path) -> None:
    ran = run(tmp_path, 3, *LONG, act=kills_a_rank)
    assert ran.status != 0
    assert "done" not in [event["event"] for event in ran.events]
    assert ran.err.strip()


def test_sigusr1_stops_all_ranks_and_saves(tmp_path: Path) -> None:
    ran = run(tmp_path, 3, *LONG, "--save", "m.safetensors", act=sends(signal.SIGUSR1))
    assert (ran.status, ran.err, ran.events[-1]["event"]) == (130, "", "stopped")
    assert nnmpi.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_suspends_a_run(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """SIGTERM too, where there is no mpirun that kills a quarter of a second later."""
    ran = run(tmp_path, 0, *SAVES, *LONG, act=sends(number))
    assert (ran.status, ran.events[-1]["event"]) == (status, "suspended"), ran.err
    assert (tmp_path / ran.events[-1]["checkpoint"]).is_dir()


def test_a_run_that_is_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    """Its log stays, and the next run follows it there; when that one is killed after a checkpoint,
    it goes on from there."""
    more = (*SAVES, "--elastic", "--log", "log", "--save-every", "20 epochs")
    log = tmp_path / "log"
    ran = run(tmp_path, 0, *more, act=sends(signal.SIGKILL))
    assert ran.status == -signal.SIGKILL
    killed, _, _ = log.read_bytes().rpartition(b"\n")
    assert b'"event": "epoch"' in killed

    def kills_after_a_checkpoint(job: Any) -> None:
        while not [*(tmp_path / "c").glob("step-*")]:
            assert job.poll() is None
            time.sleep(0.001)
        job.kill()

    ran = run(tmp_path, 0, *more, "--epochs", "5000", act=kills_after_a_checkpoint)
    assert ran.events[0]["event"] == "start"
    assert "no checkpoint of the run in log: another run follows it there" in ran.err
    written = max(int(path.name.removeprefix("step-")) for path in (tmp_path / "c").glob("step-*"))
    last = written // 30 + 2
    ran = run(tmp_path, 0, *more, "--epochs", str(last))
    assert (ran.status, ran.events[0]["event"], ran.err) == (0, "resumed", "")
    text = log.read_bytes()
    assert text.startswith(killed + b"\n")
    first, second = runs_of(events_of(log))
    assert second[0]["options"]["epochs"] == 5000
    epochs = [event["epoch"] for event in second if event["event"] == "epoch"]
    assert epochs == [*range(1, last + 1)]
    first = but_steps(first)
    assert [event["event"] for event in first] == ["start", *["epoch"] * (len(first) - 1)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ranks_that_were_suspended_and_killed_go_on_to_the_same_bits(tmp_path: Path) -> None:
    """Of a run that was not; then the run is complete, and nothing is written again."""
    (tmp_path / "whole").mkdir()
    whole = run(tmp_path / "whole", 2, *SAVES, "--save", "m")
    assert whole.status == 0, whole.err

    more = (*SAVES, "--save-every", "20", "--log", "log")
    ran = run(tmp_path, 2, *more, act=sends(signal.SIGUSR1))
    assert (ran.status, ran.events[-1]["event"]) == (75, "suspended"), ran.err
    at = ran.events[-1]["steps"]

    ran = run(tmp_path, 2, *more, "--resume", act=kills_a_rank)
    assert ran.status not in (0, 75), ran.err
    assert (ran.events[0]["event"], ran.events[0]["step"]) == ("resumed", at)

    ran = run(tmp_path, 2, *more, "--resume", "--save", "m")
    assert (ran.status, ran.events[-1]["event"]) == (0, "done"), ran.err
    assert ran.events[0]["step"] >= at
    names = ("loss", "test_loss", "accuracy", "steps", "epochs", "parameters_sha256")
    assert all(ran.events[-1][name] == whole.events[-1][name] for name in names)
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    epochs = [e["loss"] for e in log if e["event"] == "epoch"]
    assert epochs == [e["loss"] for e in whole.events if e["event"] == "epoch"]

    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    ran = run(tmp_path, 0, *more, "--elastic")
    assert (ran.status, [e["event"] for e in ran.events]) == (0, ["complete"]), ran.err
    digest = whole.events[-1]["parameters_sha256"]
    assert ran.events[0]["parameters_sha256"] == digest
    now = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert now == written
