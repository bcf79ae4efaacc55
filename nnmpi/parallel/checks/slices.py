"""The kind of strategy of --reproducible: a batch is cut into slices, whatever the ranks."""

import numpy as np

from nnmpi.data.loader import part_of
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind, StrategyKind
from nnmpi.parallel.checks.reduction_tree import owners_of
from nnmpi.schedules.op import Op, slice_by_slice


def _program(a: Arrangement, rank: int, slices: int) -> list[Op]:
    return slice_by_slice(slices)


def _slices(a: Arrangement, rank: int, batch: int) -> list[int]:
    """The number of samples in each slice of a rank, for a batch of `batch` samples."""
    rows, owners = np.arange(batch), owners_of(a.config.slices, a.mesh.size)
    slices = (v for v, owner in enumerate(owners) if owner == rank)
    return [len(part_of(rows, a.config.slices, v)) for v in slices]


KIND = StrategyKind(
    "reproducible",
    parts="nnmpi.parallel.checks.reproducible:reproducible",
    store=StoreKind("slices", buckets=False),
    program=_program,
    micro_batches=_slices,
    one_thread=True,
)


def layout_fields(a: Arrangement) -> dict[str, int]:
    """The number of slices, as a field of the event of a layout."""
    return {"slices": a.config.slices}
