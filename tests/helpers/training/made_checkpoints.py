"""Checkpoints of made-up numbers, which tell from which step, tensor and place each of them is."""

import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm.transport.base import RankLost
from nnmpi.io.checkpoints.forms import RunFacts, TensorFact, tensor_facts
from nnmpi.io.checkpoints.read import StoredCheckpoint, use_newest
from nnmpi.io.checkpoints.snapshot import Changes, Snapshot
from nnmpi.io.checkpoints.write import Writer
from nnmpi.io.output.pace import PaceCounts
from nnmpi.metrics import Sums
from nnmpi.nn.place import Place, whole
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.snapshot import SavedRange, StateRange
from nnmpi.parallel.step.executor import StepState

COPIES, SLICES, BUFFER, PARTS = "copies", "slices", "buffer", "parts"
PATHS = (COPIES, SLICES, BUFFER, PARTS)
SUMS = ("exp_avg", "exp_avg_sq")


def numbers(step: int, path: str, name: str, n: int) -> np.ndarray:
    """The numbers of a tensor, or of its sum of this name."""
    start = zlib.crc32(f"{step} {path} {name}".encode()) % 1000
    return np.arange(start, start + n, dtype=np.float64) / 7


def made(comm: Comm, step: int, n: int = 1000, epoch: int = 0) -> Snapshot:
    """What a rank has: copies of a tensor and of a buffer, a slice of one, a part of another."""
    rank, size = comm.rank, comm.size
    lo, hi = n * rank // size, n * (rank + 1) // size

    def of(path: str, place: Place, lo: int, hi: int, sums: tuple[str, ...] = SUMS) -> SavedRange:
        row = numbers(step, path, "values", n)[place.slices[0]]
        rows = {name: numbers(step, path, name, n)[place.slices[0]][lo:hi] for name in sums}
        return StateRange(*place, (0,), lo, hi, step if sums else 0, row[lo:hi], rows)

    entire = whole((n,))
    owned = (
        of(COPIES, Place(COPIES, (n,), entire), 0, n),
        of(BUFFER, Place(BUFFER, (n,), entire), 0, n, ()),
        of(SLICES, Place(SLICES, (n,), entire), lo, hi),
        of(PARTS, Place(PARTS, (n,), ((lo, hi),)), 0, hi - lo),
    )
    state = StepState(step, epoch, 0)
    sums, changes = Sums(step / 3, 1.0, 1), Changes()
    return Snapshot(Config(), size, {}, None, state, 0, sums, (), changes, owned, None)


def about_run(arrays: object = None, **others: object) -> RunFacts:
    """What a run tells, with arrays in the state of a callback."""
    about = RunFacts(
        *(False, 9, {}, None, PaceCounts(), {}),
        callbacks=(("Arrays", arrays),),
        tensors=tuple(TensorFact(path, path, path != BUFFER, path != BUFFER) for path in PATHS),
        metadata={},
        sizes=None,
    )
    return replace(about, **others)


def about_of(trainer: Trainer, state: object = None) -> RunFacts:
    """What a Trainer tells of its model, and the state of a callback."""
    return about_run(state, tensors=tensor_facts(trainer.model))


def wrong(snapshots: list[Snapshot], n: int = 1000) -> str:
    """What is not as it was `made`, in what all ranks have read together."""
    step = snapshots[0].state.step
    left = {(path, name): n for path in (COPIES, SLICES, PARTS) for name in ("values", *SUMS)}
    left[BUFFER, "values"] = n
    for one in (one for snapshot in snapshots for one in snapshot.owned):
        part = slice(one.part[0][0] + one.lo, one.part[0][0] + one.hi)
        for name, row in {"values": one.values, **one.sums}.items():
            left[one.path, name] -= one.hi - one.lo
            if not np.array_equal(row[0 : one.hi - one.lo], numbers(step, one.path, name, n)[part]):
                return f"{one.path}.{name} {part} of step {step} is another one"
        if one.steps != (0 if one.path == BUFFER else step):
            return f"{one.path} was updated {one.steps} times, not {step}"
    if any(left.values()):
        return f"numbers that are missing or there twice: {left}"
    return "" if snapshots[0].epoch.loss == step / 3 else "another loss"


def written(comm: Comm, directory: Path, steps: list[int], n: int = 1000, keep: int = 9) -> None:
    """Writes checkpoints of these steps."""
    writer = Writer(directory, comm, keep)
    for step in steps:
        writer.start(made(comm, step, n), about_run([np.full(3, step)]))
    result = writer.close()
    assert result is not None
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


def in_memory(one: SavedRange) -> SavedRange:
    """All numbers of a range, which are read."""
    return one.map(lambda row: row[0 : one.hi - one.lo])


def read(comm: Comm, directory: Path) -> tuple[StoredCheckpoint | None, Snapshot | None]:
    """The newest checkpoint, and what this rank has read of it: its share."""
    snapshots: list[Snapshot] = []

    def use(found: StoredCheckpoint) -> None:
        snapshot = found.snapshot()
        mine = snapshot.owned[comm.rank :: comm.size]
        own = all_or_none(comm, lambda: tuple(map(in_memory, mine)))
        snapshots.append(snapshot._replace(owned=own))

    found = use_newest(directory, comm, use)
    return found, snapshots[-1] if snapshots else None
