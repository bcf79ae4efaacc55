"""Declares the strategy of --reproducible, with which a training run gives the same bits on any
number of ranks, and the functions that list the work of a rank. (A strategy is the object that runs
training steps in one of the ways to be parallel.)

Each batch is cut into --slices slices, a number that does not depend on the number of ranks. A rank
computes the gradient of each of its slices by itself. The gradients of all slices are then added up
in one fixed order, along a tree over slices, whichever ranks computed them. So there may be any
number of ranks up to the number of slices. The sums themselves are made in `reproducible.py` and
`reduction_tree.py`.
"""

import numpy as np

from nnmpi.data.loader import part_of
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind, StrategyKind
from nnmpi.parallel.checks.reduction_tree import owners_of
from nnmpi.parallel.checks.slice_list import slice_by_slice


def _slices(a: Arrangement, rank: int, batch: int) -> list[int]:
    """Returns how many samples each of this rank's slices has, if the whole batch has `batch`
    samples. With --reproducible a batch is cut into a fixed number of slices, which are divided
    among ranks."""
    rows, owners = np.arange(batch), owners_of(a.config.slices, a.mesh.size)
    slices = (v for v, owner in enumerate(owners) if owner == rank)
    return [len(part_of(rows, a.config.slices, v)) for v in slices]


KIND = StrategyKind(
    "reproducible",
    parts="nnmpi.parallel.checks.reproducible:reproducible",
    store=StoreKind("slices", buckets=False),
    lists=slice_by_slice,
    micro_batches=_slices,
    one_thread=True,
)


def layout_fields(a: Arrangement) -> dict[str, int]:
    """Returns the fields that --reproducible adds to the start event of a run's log and to the
    output of --dry-run: `reproducible`, which is True, and `slices`, the number of slices of a
    batch."""
    return {"reproducible": True, "slices": a.config.slices}
