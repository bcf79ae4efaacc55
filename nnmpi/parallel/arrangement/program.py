"""The program of a rank: the list of its operations in a step, such as forward and backward passes
of stages, in order; and the sizes of micro-batches."""

from collections.abc import Sequence

import numpy as np

from nnmpi.data.loader import BatchSplit
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.mesh import BATCH
from nnmpi.schedules import proof
from nnmpi.schedules.lowering import forward_programs, lower, programs
from nnmpi.schedules.op import Op


def ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """Returns the operations (forward and backward passes, messages, ...) of a rank in a step of
    `micro` micro-batches, in order. In PipeDream each micro-batch is a step of its own, and these
    are the operations of `micro` steps.

    Runs of PipeDream get the same operations one at a time (`stream` in `schedules/lowering.py`).
    """
    if a.strategy.passes:
        return lower([a.strategy.passes(micro)], a.division.place)[0]
    return _programs(a, micro)[a.mesh.coordinates(rank)["pp"]]


@cached
def _programs(a: Arrangement, micro: int) -> Sequence[list[Op]]:
    """Returns a list of operations for each rank along pp: those of a step of `micro` micro-batches
    by the schedule."""
    pp, schedule = a.mesh.axes["pp"], proof.find(a.config.schedule)
    return programs(schedule, pp, micro, len(a.stages) // pp, a.config.recompute == "stage")


def forward_ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """Returns the operations of a rank that evaluates a batch in `micro` micro-batches, in
    order."""
    return forward_programs(a.division.place, micro)[a.mesh.coordinates(rank)["pp"]]


def micro_batches(a: Arrangement, rank: int, batch: int) -> list[int]:
    """Returns the number of samples in each micro-batch of a rank, for a batch of `batch`
    samples."""
    if a.strategy.micro_batches:
        return a.strategy.micro_batches(a, rank, batch)
    group = a.mesh.group(rank, *BATCH)
    split = BatchSplit(a.config.micro_batches, len(group), group.index(rank))
    return [len(part) for part in split(np.arange(batch))]
