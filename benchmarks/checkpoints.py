"""What checkpoints cost: mpirun -n 2 python benchmarks/checkpoints.py [--every N] [--json FILE]

    step     a step while a checkpoint is written every N steps, over a step without
    waited   the share of that time in which training has waited for checkpoints
    write    a checkpoint, over copying its files and flushing them to disk, as cp and fsync do

The sides of each ratio are timed in turn, in rounds within one job.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lib import timing
from lib.models import WORKLOADS
from lib.timing import Row, Spread
from lib.workloads import MODELS, samples

import nnmpi
from nnmpi import Trainer, blas
from nnmpi.comm import Comm, world
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.step.executor import StepState
from nnmpi.run.checkpoints.write import Writer

BATCHES = 4
KEPT = 1


class Cost(NamedTuple):
    """Seconds of each round."""

    with_checkpoint: list[float]  # of so many steps
    without: list[float]
    waited: list[float]
    write: list[float]
    copy: list[float]
    size: int  # bytes of a checkpoint


def steps(trainer: Trainer, count: int, after: Callable[[int], object]) -> None:
    """So many steps, in as many epochs as that takes."""
    done, state = 0, StepState(trainer.step)
    while done < count:
        with closing(trainer.strategy.steps(trainer.train, state)) as results:
            for result in islice(results, count - done):
                done, state = done + 1, result.state
                after(done)


def seconds(comm: Comm, f: Callable[[], object]) -> float:
    """Until all ranks have ended f; the same on all ranks."""
    comm.barrier()
    began = time.perf_counter()
    f()
    comm.barrier()
    taken = np.array([time.perf_counter() - began])
    comm.broadcast(taken)
    return float(taken[0])


def copied(source: Path, rank: int, ranks: int) -> None:
    """Copies the files of a checkpoint, each on one rank, and flushes them to disk."""
    for path in sorted(source.iterdir())[rank::ranks]:
        target = source.parent / f"copy-{path.name}"
        shutil.copyfile(path, target)
        for name in (target, source.parent):
            file = os.open(name, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def measure(comm: Comm, case: str, every: int, rounds: int, directory: Path) -> Cost:
    """Times the steps and the writing of a workload; every rank calls it."""
    batch_size = WORKLOADS[case].shape[0] * comm.size
    data = samples(WORKLOADS[case], BATCHES * batch_size)
    config = nnmpi.Config(model=MODELS[case], batch_size=batch_size, lr_schedule="constant")
    trainer = Trainer(config, data=(*data, *data), comm=comm)
    writer = Writer(directory, comm, keep=KEPT)
    found = Cost([], [], [], [], [], 0)

    def write() -> None:
        writer.start(trainer.snapshot(), {})

    def after(step: int) -> None:
        if step == 1:
            write()
        writer.poll()

    def with_checkpoint() -> None:
        steps(trainer, every, after)
        writer.finish()

    def whole() -> None:
        write()
        writer.finish()

    def newest() -> Path:
        return max(directory.glob("step-*"))

    trainer.model.train()
    with_checkpoint()
    for _ in range(rounds):
        found.without.append(seconds(comm, lambda: steps(trainer, every, lambda _: None)))
        before = writer.waited
        found.with_checkpoint.append(seconds(comm, with_checkpoint))
        found.waited.append(writer.waited - before)
        found.write.append(seconds(comm, whole))
        found.copy.append(seconds(comm, lambda: copied(newest(), comm.rank, comm.size)))
    size = sum(path.stat().st_size for path in newest().iterdir())
    writer.close()
    trainer.close()
    return found._replace(size=size)


def rows_of(case: str, found: Cost, every: int, ranks: int, facts: Row) -> list[Row]:
    """A row for each ratio."""
    ratios = {
        "step": timing.ratio(found.with_checkpoint, found.without),
        "waited": Spread.of([a / b for a, b in zip(found.waited, found.without, strict=True)]),
        "write": timing.ratio(found.write, found.copy),
    }
    about = {"benchmark": "checkpoints", "case": case, "ranks": ranks, "every": every}
    return [
        {
            **about,
            "subject": name,
            "ratio": found_ratio.median,
            "ratio_low": found_ratio.low,
            "ratio_high": found_ratio.high,
            "bytes": found.size,
            **facts,
        }
        for name, found_ratio in ratios.items()
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--cases", default="W1,W2", help="of W1 and W2")
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
    for case in a.cases.split(","):
        own = tempfile.mkdtemp(dir=a.directory) if comm.rank == 0 else ""
        directory = Path(gather_objects(comm, own)[0])
        found = measure(comm, case, a.every, a.rounds, directory)
        rows += rows_of(case, found, a.every, comm.size, facts)
        if comm.rank == 0:
            shutil.rmtree(directory)
            cells = "".join(
                f"{row['subject']:>10} {row['ratio']:.3f} "
                f"({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
                for row in rows[-3:]
            )
            print(f"{case}  {found.size / 1e6:.1f} MB{cells}")
    if comm.rank == 0:
        timing.finish(a.json, rows)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
