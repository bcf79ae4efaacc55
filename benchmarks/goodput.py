"""Goodput of runs whose ranks are killed, beside the simulated one: python benchmarks/goodput.py

A pipeline of 4 ranks trains under `mpirun --with-ft ulfm`, with copies of its state in the memory
of other ranks (--backup) and with spare ranks. Ranks that work are killed by SIGKILL, as many as
there are spares: which ones, and when, is drawn with --seed. A run without kills is timed before
and after each run with them: its wall-clock time is the work.

    goodput = time of that run / time of the run with kills
    detect  = from the kill to the event `recovered` in the log, less the seconds of that event
    arrange = the seconds of that event
    redo    = its steps that are made again

`nnmpi.addons.simulator.goodput.Run`, for which `nnmpi.simulate goodput` draws failures, gets the
kills as they were, the interval of copies, and the mean of detect + arrange in this run. What is
made again is then its prediction, and so is the goodput. Stages sleep most of the time, so that
steps take as long on a busy machine, and with more ranks than cores."""

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from lib import jobs, timing
from lib.jobs import JobError
from lib.timing import Row

from nnmpi.addons.simulator.goodput import Backup, Job, Run

STAGES = 4
LEAST = 4.0  # seconds between kills: a second one before the next copy would need a checkpoint
POLL = 0.002  # seconds


class Loss(NamedTuple):
    """A rank that was killed, on the clock of its run."""

    killed: float
    detect: float
    arrange: float
    steps_again: int


class Measured(NamedTuple):
    """A run from its event `start` to its event `done`."""

    seconds: float
    losses: list[Loss]


class Training:
    """A run under way: its processes, and the events of its log."""

    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        self._folder, self._log = folder, folder / "log"
        flags = (
            f"--model lib.killed:model --data digits --steps {a.steps} --batch-size 16 "
            f"--pp {STAGES} --cut 3,6,9 --micro-batches 4 --backup {a.backup} --elastic "
            f"--checkpoint-dir {folder / 'c'} --log {self._log} --quiet"
        )
        ranked = [*jobs.program("lib.killed"), str(folder), *flags.split()]
        (path, *command), env = jobs.mpirun(STAGES + a.spares, ranked)
        self._end = time.monotonic() + a.timeout
        self._job = subprocess.Popen(
            [path, "--with-ft", "ulfm", *command],
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
            stderr=(folder / "err").open("wb"),
            start_new_session=True,
        )

    def wait(self, kind: str, count: int = 1, until: float = float("inf")) -> float | None:
        """When the log has so many events of a kind; None if it has not at this time."""
        while time.monotonic() < until:
            if len(self.events(kind)) >= count:
                return time.monotonic()
            if self._job.poll() is not None or time.monotonic() > self._end:
                raise JobError(f"no {kind}: {(self._folder / 'err').read_text()[-300:]}")
            time.sleep(POLL)
        return None

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind that are in the log."""
        lines = self._log.read_text().split("\n")[:-1] if self._log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def kill(self, rank: int) -> None:
        """Kills a rank, which this run has started."""
        os.kill(int((self._folder / f"pid.{rank}").read_text()), signal.SIGKILL)

    def end(self) -> None:
        """Ends the run, if it has not ended by itself."""
        try:
            self._job.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._job.pid, signal.SIGKILL)
            self._job.wait()


def measured(a: argparse.Namespace, draws: random.Random | None) -> Measured:
    """A run, with kills if there is something to draw them from."""
    with tempfile.TemporaryDirectory(prefix="nnmpi-goodput-") as name:
        training = Training(a, Path(name))
        try:
            began = training.wait("start")
            assert began is not None
            losses = [*_killed(a, training, draws, began)] if draws else []
            end = training.wait("done")
            assert end is not None
            return Measured(end - began, losses)
        finally:
            training.end()


def _killed(
    a: argparse.Namespace, training: Training, draws: random.Random, began: float
) -> list[Loss]:
    """Kills as many ranks as there are spares, unless the run ends before."""
    left, losses, at = [*range(STAGES + a.spares)], list[Loss](), began
    for _ in range(a.spares):
        at += LEAST + draws.expovariate(1 / a.mttf)
        rank = left.pop(draws.randrange(STAGES))  # the first of those that are left work
        if training.wait("done", until=at) is not None:
            break
        killed = time.monotonic()
        training.kill(rank)
        seen = training.wait("recovered", len(losses) + 1)
        assert seen is not None
        event = training.events("recovered")[-1]
        arrange = event["seconds"]
        detect = seen - killed - arrange
        losses.append(Loss(killed - began, detect, arrange, event["steps_again"]))
    return losses


def simulated(job: Job, kills: Sequence[float], work: float) -> Run:
    """The simulated job when its work is done, after the same kills."""
    run = Run(job)
    for at in kills:
        run.advance(at - run.clock)
        run.fail()
    while run.done < work:
        run.advance(min(0.01, work))
    return run


def row_of(a: argparse.Namespace, run: Measured, alone: float, facts: Row) -> Row:
    """The figures of a run with kills; `alone` is the time without."""
    step, kills = alone / a.steps, len(run.losses)
    recover = sum(loss.detect + loss.arrange for loss in run.losses) / kills
    job = Job(STAGES, a.mttf * STAGES, 0.0, recover, 1e9, Backup(a.backup * step, recover))
    paper = simulated(job, [loss.killed for loss in run.losses], alone)
    return {
        "benchmark": "goodput",
        "case": "pp 4",
        "ranks": STAGES,
        "spares": a.spares,
        "kills": kills,
        "seconds": run.seconds,
        "seconds_without": alone,
        "detect": fmean(loss.detect for loss in run.losses),
        "arrange": fmean(loss.arrange for loss in run.losses),
        "steps_again": sum(loss.steps_again for loss in run.losses),
        "steps_again_simulated": (paper.clock - alone - kills * recover) / step,
        "goodput": alone / run.seconds,
        "goodput_simulated": alone / paper.clock,
        "killed_at": [round(loss.killed, 3) for loss in run.losses],
        **facts,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", help="write one row per run to this file")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--backup", type=int, default=20, help="steps between copies")
    p.add_argument("--spares", type=int, default=3, help="ranks that replace killed ones")
    p.add_argument("--mttf", type=float, default=3.0, help=f"seconds, added to {LEAST:g}")
    p.add_argument("--runs", type=int, default=4, help="with kills")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--timeout", type=float, default=150.0, help="seconds of a run")
    a = p.parse_args(arguments)
    if min(a.runs, a.spares, a.steps, a.backup) < 1 or a.mttf <= 0:
        p.error("--runs, --spares, --steps and --backup must be at least 1, and --mttf above 0")
    return a


def measure(a: argparse.Namespace) -> None:
    """Runs all, prints and writes the results."""
    facts, draws = timing.machine(), random.Random(a.seed)
    timing.warn_if_busy(facts)
    without, runs = [measured(a, None).seconds], list[Measured]()
    for _ in range(a.runs):
        runs.append(measured(a, draws))
        if not runs[-1].losses:
            raise JobError(f"the run of {a.steps} steps ended before a kill: take more --steps")
        without.append(measured(a, None).seconds)
    rows = []
    for i, run in enumerate(runs):
        row = row_of(a, run, fmean(without[i : i + 2]), facts)
        rows.append(row)
        print(
            f"{row['kills']} kills in {row['seconds']:.1f} s, {row['seconds_without']:.1f} s "
            f"without; detect {row['detect']:.3f} s, arrange {row['arrange']:.3f} s; steps again "
            f"{row['steps_again']}, simulated {row['steps_again_simulated']:.0f}; goodput "
            f"{row['goodput']:.3f}, simulated {row['goodput_simulated']:.3f}"
        )
    print(f"goodput {_mean(rows, 'goodput')}, simulated {_mean(rows, 'goodput_simulated')}")
    timing.finish(a.json, rows)


def _mean(rows: Sequence[Row], key: str) -> str:
    return f"{fmean(row[key] for row in rows):.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    a = parse(arguments)
    jobs.run("goodput.py", lambda: measure(a))


if __name__ == "__main__":
    main()
