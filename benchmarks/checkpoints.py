"""What checkpoints cost: mpirun -n 2 python benchmarks/checkpoints.py [--every N] [--json FILE]

    step     so many steps while a checkpoint is written, over steps without; `best` is the quotient
             of the shortest times
    cpu      1 + the processor time of a checkpoint, over the time of the steps: what the steps cost
             where every core computes
    waited   the share of that time in which training has waited for checkpoints
    write    the speed of a checkpoint, over that of copying its files and flushing them to disk, as
             cp and fsync do

The sides of each ratio are timed in turn, the other one first in each round, within one job. Case
LARGE writes 550 MB, and makes no steps.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lib import timing
from lib.models import WORKLOADS
from lib.timing import Row, Spread
from lib.workloads import MODELS, endless, samples

import nnmpi
from nnmpi import Trainer
from nnmpi.addons.checkpoints.write import Writer
from nnmpi.arrays import blas
from nnmpi.comm import Comm, world
from nnmpi.parallel.agreement import gather_objects

BATCHES = 4
KEPT = 1
LARGE = "LARGE"
MODEL_OF = {**MODELS, LARGE: "mlp:784-6400-6400-10"}


class Cost(NamedTuple):
    """Figures of each round, in seconds."""

    with_checkpoint: list[float]  # of so many steps
    without: list[float]
    cpu: list[float]  # of a checkpoint
    waited: list[float]
    write: list[float]
    copy: list[float]
    size: int  # bytes of a checkpoint


def seconds(comm: Comm, f: Callable[[], object]) -> float:
    """Until all ranks have ended f; the same on all ranks."""
    comm.barrier()
    began = time.perf_counter()
    f()
    comm.barrier()
    return mean(comm, time.perf_counter() - began)


def mean(comm: Comm, figure: float) -> float:
    """Of all ranks."""
    found = np.array([figure / comm.size])
    comm.all_reduce(found)
    return float(found[0])


def copied(files: Sequence[Path]) -> None:
    """Copies files, and flushes them to disk."""
    for path in files:
        target = path.parent.parent / f"copy-{path.name}"
        shutil.copyfile(path, target)
        for name in (target, target.parent):
            file = os.open(name, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


class Measured:
    """A model in training, its checkpoints, and what they cost so far; each rank makes one."""

    def __init__(self, comm: Comm, case: str, every: int, directory: Path) -> None:
        w = WORKLOADS["W2" if case == LARGE else case]
        batch_size = w.shape[0] * comm.size
        data = samples(w, BATCHES * batch_size)
        config = nnmpi.Config(
            model=MODEL_OF[case], batch_size=batch_size, lr_schedule="constant", epochs=1
        )
        self._comm, self._every, self._directory = comm, every, directory
        self._trainer = Trainer(config, data=(*data, *data), comm=comm)
        self._steps = endless(self._trainer)
        self._writer = Writer(directory, comm, keep=KEPT)
        self.cost = Cost([], [], [], [], [], [], 0)

    def _start(self) -> None:
        session = self._trainer.session
        about = self._trainer.checkpoints.about(session)
        self._writer.start(session.snapshot(copies=False), about)

    def _with_checkpoint(self) -> None:
        next(self._steps)
        self._start()
        for _ in islice(self._steps, self._every - 1):
            self._writer.poll()
        self._writer.finish()

    def _without(self) -> None:
        for _ in islice(self._steps, self._every):
            pass

    def _write(self) -> None:
        self._start()
        self._writer.finish()

    def _files(self) -> list[Path]:
        """What this rank copies of the newest checkpoint."""
        found = sorted(max(self._directory.glob("step-*")).iterdir())
        return found[self._comm.rank :: self._comm.size]

    def warm_up(self, trains: bool) -> None:
        """All that is timed, once, and its times are dropped."""
        self.round(trains, False)
        size = sum(path.stat().st_size for path in self._files()) * self._comm.size
        self.cost = Cost([], [], [], [], [], [], round(mean(self._comm, size)))

    def round(self, trains: bool, is_odd: bool) -> None:
        """Times each side; the other one of two comes first in the next round."""
        sides = [self._time_steps, self._time_checkpoint] if trains else []
        for time_side in sides[:: (-1) ** is_odd]:
            time_side()
        for time_side in [self._time_write, self._time_copy][:: (-1) ** is_odd]:
            time_side()

    def _time_steps(self) -> None:
        self.cost.without.append(seconds(self._comm, self._without))

    def _time_checkpoint(self) -> None:
        before = self._writer.waited
        self.cost.with_checkpoint.append(seconds(self._comm, self._with_checkpoint))
        self.cost.waited.append(self._writer.waited - before)

    def _time_write(self) -> None:
        before = time.process_time()
        self.cost.write.append(seconds(self._comm, self._write))
        self.cost.cpu.append(mean(self._comm, time.process_time() - before))

    def _time_copy(self) -> None:
        files = self._files()
        for path in files:
            path.read_bytes()  # into memory, where cp finds what was just written
        self.cost.copy.append(seconds(self._comm, lambda: copied(files)))
        for path in files:
            (self._directory / f"copy-{path.name}").unlink()

    def close(self) -> None:
        """Ends the epoch, in which ranks may have messages under way."""
        self._steps.close()
        self._writer.close()
        self._trainer.close()


def rows_of(case: str, found: Cost, every: int, ranks: int, facts: Row) -> list[Row]:
    """A row for each ratio."""
    ratios = {"write": timing.ratio(found.copy, found.write)}
    if found.without:
        ratios = {
            "step": timing.ratio(found.with_checkpoint, found.without),
            "cpu": Spread.of([1 + c / min(found.without) for c in found.cpu]),
            "waited": timing.ratio(found.waited, found.without),
            **ratios,
        }
    about = {"benchmark": "checkpoints", "case": case, "ranks": ranks, "every": every}
    rows: list[Row] = [
        {
            **about,
            "subject": name,
            "ratio": ratio.median,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "bytes": found.size,
            "rounds": len(found.write),
            **facts,
        }
        for name, ratio in ratios.items()
    ]
    rows[-1]["best"] = min(found.copy) / min(found.write)
    if found.without:
        rows[0]["best"] = min(found.with_checkpoint) / min(found.without)
    return rows


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--cases", nargs="+", choices=MODEL_OF, default=[*MODEL_OF])
    p.add_argument("--directory", default=tempfile.gettempdir(), help="on the disk to measure")
    p.add_argument("--json", help="write one row per measurement")
    return p.parse_args(arguments)


def main() -> None:
    """Measure on every rank of the job; rank 0 prints and writes."""
    a = parse()
    blas.tune()
    comm, rows = world(), list[Row]()
    facts = timing.machine()
    if comm.rank == 0:
        timing.warn_if_busy(facts)
        print(f"a checkpoint every {a.every} steps on {comm.size} ranks, {facts['cpu']}")
    for case in a.cases:
        own = tempfile.mkdtemp(dir=a.directory) if comm.rank == 0 else ""
        directory = Path(gather_objects(comm, own)[0])
        measured = Measured(comm, case, a.every, directory)
        measured.warm_up(case != LARGE)
        for i in range(a.rounds):
            measured.round(case != LARGE, i % 2 == 1)
        measured.close()
        found = rows_of(case, measured.cost, a.every, comm.size, facts)
        if comm.rank == 0:
            shutil.rmtree(directory)
            print(f"{case}  {measured.cost.size / 1e6:.1f} MB{''.join(map(cell, found))}")
        rows += found
    if comm.rank == 0:
        timing.finish(a.json, rows)
    sys.stdout.flush()


def cell(row: Row) -> str:
    """A ratio with its quartiles, and that of the best times."""
    best = f", best {row['best']:.3f}" if "best" in row else ""
    low, high = row["ratio_low"], row["ratio_high"]
    return f"   {row['subject']} {row['ratio']:.3f} ({low:.3f} to {high:.3f}{best})"


if __name__ == "__main__":
    main()
