"""What a rank does in a step: the ops of its program, and the rows of its micro-batches.

Batches are cut by their length alone.
"""

from dataclasses import dataclass

import numpy as np

from nnmpi.collectives.step import cut
from nnmpi.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.schedules import (
    SCHEDULES,
    Op,
    forward_program,
    one_stage,
    owners_of,
    program,
    slice_by_slice,
)


@dataclass(frozen=True)
class BatchSplit:
    """Cuts a batch into micro-batches, and each of these over ranks; keeps this rank's parts.

    7 rows, 2 micro-batches, 3 ranks     0 1 2 | 3 4 5 6      rank 0  0 | 3
                                                              rank 1  1 | 4
                                                              rank 2  2 | 5 6
    """

    micro_batches: int
    ranks: int
    rank: int

    def __call__(self, rows: np.ndarray) -> list[np.ndarray]:
        parts = min(self.micro_batches, len(rows))  # none is empty
        return [part_of(part_of(rows, parts, m), self.ranks, self.rank) for m in range(parts)]


def part_of(rows: np.ndarray, parts: int, i: int) -> np.ndarray:
    """Part i of so many, as equal as they can be."""
    return rows[cut(len(rows), parts, i) : cut(len(rows), parts, i + 1)]


def ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """The program of a rank for a step of so many micro-batches; of PipeDream, for so many steps.

    PipeDream carries out the same, one op at a time (`schedules/stream.py`).
    """
    if a.strategy == "reproducible":
        return slice_by_slice(micro)
    if a.strategy not in ("pipeline", "pipedream"):
        return one_stage(micro)
    pp, at = a.mesh.axes["pp"], a.mesh.coordinates(rank)["pp"]
    schedule = SCHEDULES[a.config.schedule]
    return program(schedule, pp, micro, len(a.stages) // pp, at, a.config.recompute)


def forward_ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """The program of a rank for the evaluation of a batch in so many micro-batches."""
    pp, at = a.mesh.axes["pp"], a.mesh.coordinates(rank)["pp"]
    return forward_program(pp, micro, len(a.stages) // pp, at)


def micro_batches(a: Arrangement, rank: int, batch: int) -> list[int]:
    """How many samples of a batch each micro-batch of a rank has."""
    rows = np.arange(batch)
    if a.strategy == "reproducible":
        owners = owners_of(a.config.slices, a.mesh.size)
        own = (v for v, owner in enumerate(owners) if owner == rank)
        return [len(part_of(rows, a.config.slices, v)) for v in own]
    at = a.mesh.coordinates(rank)["dp"]
    split = BatchSplit(a.config.micro_batches, a.mesh.axes["dp"], at)
    return [len(part) for part in split(rows)]


def measured_samples(config: Config, dp: int) -> int:
    """The samples on which the units of a model are measured: a micro-batch."""
    return max(-(-config.batch_size // (config.micro_batches * dp)), 2)
