"""What a rank does in a step: the ops of its program, and the samples of its micro-batches."""

import numpy as np

from nnmpi.config import Config
from nnmpi.data.loader import BatchSplit, part_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.schedules.lowering import forward_programs, programs
from nnmpi.schedules.op import Op, slice_by_slice
from nnmpi.schedules.pipeline import SCHEDULES
from nnmpi.schedules.reduction_tree import owners_of


def ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """The program of a rank for a step of so many micro-batches; of PipeDream, for so many steps.

    PipeDream carries out the same, one op at a time (`stream` in `schedules/lowering.py`).
    """
    if a.strategy == "reproducible":
        return slice_by_slice(micro)
    pp, at = a.mesh.axes["pp"], a.mesh.coordinates(rank)["pp"]
    schedule = SCHEDULES[a.config.schedule]
    return programs(schedule, pp, micro, len(a.stages) // pp, a.config.recompute)[at]


def forward_ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """The program of a rank for the evaluation of a batch in so many micro-batches."""
    pp, at = a.mesh.axes["pp"], a.mesh.coordinates(rank)["pp"]
    return forward_programs(pp, micro, len(a.stages) // pp)[at]


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
