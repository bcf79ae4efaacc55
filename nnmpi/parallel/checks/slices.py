"""The strategy of --reproducible: each batch is cut into a fixed number of slices, whatever the
number of ranks.
"""

from itertools import chain

import numpy as np

from nnmpi.data.loader import part_of
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind, StrategyKind
from nnmpi.parallel.checks.reduction_tree import owners_of
from nnmpi.schedules.op import Kind, Op


def slice_by_slice(a: Arrangement, rank: int, slices: int) -> list[Op]:
    """Returns the operations of a rank's step for --reproducible, in which a batch is cut into
    slices. For 2 slices: F0 B0 NOTE F1 B1 NOTE APPLY, where F and B are the forward and backward
    pass of a slice, NOTE adds its gradient to the sum over slices, and APPLY updates the
    parameters."""
    each = ((Op(Kind.F, m), Op(Kind.B, m), Op(Kind.NOTE)) for m in range(slices))
    return [*chain.from_iterable(each), Op(Kind.APPLY)]


def _slices(a: Arrangement, rank: int, batch: int) -> list[int]:
    """Returns, for a batch of `batch` samples, the number of samples in each slice of the batch
    that a rank computes."""
    rows, owners = np.arange(batch), owners_of(a.config.slices, a.mesh.size)
    slices = (v for v, owner in enumerate(owners) if owner == rank)
    return [len(part_of(rows, a.config.slices, v)) for v in slices]


KIND = StrategyKind(
    "reproducible",
    parts="nnmpi.parallel.checks.reproducible:reproducible",
    store=StoreKind("slices", buckets=False),
    program=slice_by_slice,
    micro_batches=_slices,
    one_thread=True,
)


def layout_fields(a: Arrangement) -> dict[str, int]:
    """Returns fields for events that describe a layout: `reproducible` and the number of slices."""
    return {"reproducible": True, "slices": a.config.slices}
