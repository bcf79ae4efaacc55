"""Checkpoints of made-up numbers, which tell from which step, tensor and place each of them is."""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from nnmpi import Config, Trainer
from nnmpi.addons.checkpoints.forms import RunFacts
from nnmpi.addons.checkpoints.read import StoredCheckpoint, use_newest
from nnmpi.addons.checkpoints.write import Writer
from nnmpi.comm import Comm
from nnmpi.comm.transport.base import RankLost
from nnmpi.io.checkpoints.snapshot import Changes, Snapshot
from nnmpi.io.output.pace import PaceCounts
from nnmpi.metrics import Sums
from nnmpi.nn.place import Place, StateArray, whole
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.state import first_names
from nnmpi.parallel.step.executor import StepState

COPIES, SLICES, BUFFER, PARTS = "copies", "slices", "buffer", "parts"
PATHS = (COPIES, SLICES, BUFFER, PARTS)
SUMS = ("exp_avg", "exp_avg_sq")


def numbers(step: int, name: str, n: int) -> np.ndarray:
    """The numbers of the array of this name."""
    start = zlib.crc32(f"{step} {name}".encode()) % 1000
    return np.arange(start, start + n, dtype=np.float64) / 7


def made(comm: Comm, step: int, n: int = 1000, epoch: int = 0) -> Snapshot:
    """What a rank has: copies of a tensor and of a buffer, a slice of one, a part of another."""
    rank, size = comm.rank, comm.size
    lo, hi = n * rank // size, n * (rank + 1) // size

    def of(place: Place, lo: int, hi: int) -> Iterator[StateArray]:
        names = place.path, *(f"{place.path}.{name}" for name in SUMS if place.path != BUFFER)
        for name in names:
            x = StateArray(place, (0,), lo, hi, "float64", place.path == BUFFER).named(name)
            yield x.holding(numbers(step, name, n)[place.slices][lo:hi])
        if place.path != BUFFER:
            count = StateArray(Place.of_whole(f"{place.path}.step", ()), (), 0, 1, "int64", True)
            yield count.holding(np.array([step]))

    entire = whole((n,))
    arrays = (
        *of(Place(COPIES, (n,), entire), 0, n),
        *of(Place(BUFFER, (n,), entire), 0, n),
        *of(Place(SLICES, (n,), entire), lo, hi),
        *of(Place(PARTS, (n,), ((lo, hi),)), 0, hi - lo),
    )
    state = StepState(step, epoch, 0)
    sums, changes = Sums(step / 3, 1.0, 1), Changes()
    return Snapshot(Config(), size, {}, None, state, 0, sums, (), changes, arrays)


def about_run(arrays: object = None, **others: object) -> RunFacts:
    """What a run tells, with arrays in the state of a callback."""
    about = RunFacts(
        *(False, 9, {}, None, PaceCounts(), {}),
        callbacks=(("Arrays", arrays),),
        tensors={path: path for path in PATHS},
        buffers=(BUFFER,),
        others=(),
        metadata={},
        sizes=None,
        restored=(),
    )
    return replace(about, **others)


def about_of(trainer: Trainer, state: object = None) -> RunFacts:
    """What a Trainer tells of its model, and the state of a callback."""
    return about_run(state, tensors=first_names(trainer.model), buffers=())


def wrong(snapshots: list[Snapshot], n: int = 1000) -> str:
    """What is not as it was `made`, in what all ranks have read together."""
    step = snapshots[0].state.step
    trained = (COPIES, SLICES, PARTS)
    left = dict.fromkeys(PATHS, n)
    left |= {f"{path}.{name}": n for path in trained for name in SUMS}
    left |= {f"{path}.step": 1 for path in trained}
    for x in (x for snapshot in snapshots for x in snapshot.arrays):
        left[x.name] -= x.size
        if x.name.endswith(".step"):
            if x.elements() != step:
                return f"{x.name} is {x.elements()}, not {step}"
            continue
        start = x.place.part[0][0]
        wanted = numbers(step, x.name, n)[start + x.lo : start + x.hi]
        if not np.array_equal(x.elements(), wanted):
            return f"{x.name} {x.range} of step {step} is another one"
    if any(left.values()):
        return f"numbers that are missing or there twice: {left}"
    return "" if snapshots[0].epoch.loss == step / 3 else "another loss"


def written(comm: Comm, directory: Path, steps: list[int], n: int = 1000, keep: int = 9) -> None:
    """Writes checkpoints of these steps."""
    writer = Writer(directory, comm, keep)
    for step in steps:
        writer.start(made(comm, step, n), about_run([np.full(3, step)]))
    result = writer.close()
    assert not result.problem, result.problem


def written_by_survivors(comm: Comm, directory: Path, first: int, told: list[int]) -> Comm:
    """Writes checkpoints, of which the first rank tells, until a rank is lost; returns the rest."""
    writer = None
    try:
        writer = Writer(directory, comm)
        for step in range(first, first + 100):
            if (
                result := writer.start(made(comm, step), about_run([np.full(3, step)]))
            ) is not None:
                assert not result.problem, result.problem
                told.append(result.step)
            comm.barrier()
            writer.poll()
    except RankLost:
        while True:
            with suppress(RankLost):
                return comm.shrink()
    finally:
        if writer is not None:
            writer.abandon()
    raise AssertionError("no rank was lost")


def read(comm: Comm, directory: Path) -> tuple[StoredCheckpoint | None, Snapshot | None]:
    """The newest checkpoint, and what this rank has read of it: its share."""
    snapshots: list[Snapshot] = []

    def use(found: StoredCheckpoint) -> None:
        snapshot = found.snapshot()
        mine = snapshot.arrays[comm.rank :: comm.size]
        own = all_or_none(comm, lambda: tuple(x.copied() for x in mine))
        snapshots.append(snapshot._replace(arrays=own))

    found = use_newest(directory, comm, use)
    return found, snapshots[-1] if snapshots else None
