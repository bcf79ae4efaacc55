"""Lists the work of a rank with --reproducible. Each batch is cut into --slices slices, a number
that does not depend on that of ranks; their gradients are added up along a tree over slices
(`reduction_tree.py`), so there may be any number of ranks up to that of slices."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nnmpi.addons.checks.reduction_tree import owners_of
from nnmpi.collectives.algorithms import Collective
from nnmpi.data.loader import part_of
from nnmpi.io.output.messages import EventFields
from nnmpi.nn import BatchNorm1d, BatchNorm2d
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.exchanges import FLOAT64, AxisExchange, new_exchange
from nnmpi.schedules.op import Op


def micro_batches(a: Arrangement, rank: int, batch: int) -> list[int]:
    """Returns how many samples each of this rank's slices has in a batch of `batch` samples."""
    rows, owners = np.arange(batch), owners_of(a.config.slices, a.mesh.size)
    slices = (v for v, owner in enumerate(owners) if owner == rank)
    return [len(part_of(rows, a.config.slices, v)) for v in slices]


def sent(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    """Yields the messages of a partial sum to another rank: gradients, and moments."""
    to = a.mesh.group(rank, "dp")[:2]  # pairs exchange at once: the first one is priced for all
    for n, dtype in _summed(a, rank):
        about = Collective.MESSAGE, "", to, n, dtype, op.kind
        yield "dp", new_exchange(a, "gradients", *about)


def broadcast(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    for n, dtype in _summed(a, rank):
        about = Collective.BROADCAST, "tree", a.mesh.group(rank, "dp"), n, dtype, op.kind
        yield "dp", new_exchange(a, "sums", *about)


@cached
def _summed(a: Arrangement, rank: int) -> list[tuple[int, np.dtype[Any]]]:
    """Returns (elements, dtype) of the arrays that are summed along the tree: the gradients of a
    rank with the scalars in front of them, and the moments of all its BatchNorm layers."""
    kinds = BatchNorm1d, BatchNorm2d
    layers = (node for node in a.graph.nodes if issubclass(node.layer or object, kinds))
    moments = sum(1 + 2 * node.settings["num_features"] for node in layers)
    return [(a.model_on(rank).length, a.dtype), (moments, FLOAT64)]


def layout_fields(a: Arrangement) -> dict[str, int]:
    """Returns the fields of the start event: `reproducible`, True, and `slices`, their number."""
    return {"reproducible": True, "slices": a.config.slices}


FIELDS = EventFields(layout=layout_fields)
