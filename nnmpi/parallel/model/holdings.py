"""What each rank of an arrangement has of a model in training, and what it needs of it, on paper.

held      all of its part of each tensor that a rank has: what it needs before it trains
updated   the stretches of trained parameters that a rank updates, and has running sums of
owned     what it updates, and all of its parts of other tensors: what a snapshot has of it
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.dtypes import is_float
from nnmpi.nn import Module
from nnmpi.nn.place import Place, Range, whole
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.sole import updated_stretches
from nnmpi.parallel.arrangement.state_bytes import sums_of_optimizer
from nnmpi.parallel.model.moves import VALUES, Arrays, MovedTensor, MovePlan
from nnmpi.parallel.model.nearest import plan_moves


def held(a: Arrangement) -> Iterator[tuple[int, Range]]:
    """All parts that ranks have, each with its rank."""
    for rank in range(a.ranks):
        model = a.model_on(rank)
        for one in (*model.trained, *model.others):
            yield rank, _place(a, one.variable, rank).range()


def updated(a: Arrangement) -> Iterator[tuple[int, Range]]:
    """What ranks update of trained parameters, in the order of memory, each with its rank."""
    for rank in range(a.ranks):
        for one, (lo, hi) in updated_stretches(a, rank):
            yield rank, _place(a, one.variable, rank).range(lo, hi)


def owned(a: Arrangement) -> Iterator[tuple[int, Range]]:
    """What snapshots of ranks have, each with its rank."""
    yield from updated(a)
    trained = {one.variable for model in a.rank_models.values() for one in model.trained}
    paths = {a.graph.variables[v].path for v in trained}
    yield from ((r, one) for r, one in held(a) if one.tensor not in paths and r < a.mesh.size)


def _place(a: Arrangement, v: int, rank: int) -> Place:
    """The place of the part of a variable that a rank has."""
    path, shape = a.graph.variables[v].path, a.graph.variables[v].shape
    part, cut = whole(shape), a.sharding.variables.get(v)
    if cut is not None:
        tp = a.mesh.coordinates(min(rank, a.mesh.size - 1))["tp"]
        side = cut.bounds[tp], cut.bounds[tp + 1]
        part = (*part[: cut.axis], side, *part[cut.axis + 1 :])
    return Place(path, shape, part)


def axes_of(model: Module) -> dict[str, tuple[int, ...]]:
    """The axes of each parameter in the order of memory, by its path."""
    return {p.place.path: p.memory_axes for p in model.parameters()}


class Rearranged(NamedTuple):
    """The moves from one arrangement to another one: of parameters and buffers, and of sums."""

    values: MovePlan
    sums: MovePlan


def rearranged(
    before: Arrangement, after: Arrangement, axes: Mapping[str, Sequence[int]]
) -> Rearranged:
    """What ranks move when they are arranged anew; those of the larger job are there.

    `axes` are those of the model (see `axes_of`).
    """
    nodes = max(before.cluster.nodes, after.cluster.nodes, key=len)
    dtype = after.updated_dtype
    sums: Arrays = tuple((f"sum {j}", dtype) for j in range(sums_of_optimizer(after.config)))
    variables = after.graph.variables
    order = [tuple(axes.get(v.path, range(len(v.shape)))) for v in variables]
    types = [np.dtype(v.dtype) for v in variables]
    types = [dtype if is_float(t) else t for t in types]
    tensors = [
        MovedTensor(v.path, v.shape, own, ((VALUES, t),), not v.is_parameter)
        for v, own, t in zip(variables, order, types, strict=True)
    ]
    summed = [tensor._replace(arrays=sums) for tensor in tensors]
    return Rearranged(
        plan_moves(tensors, owned(before), held(after), nodes),
        plan_moves(summed, updated(before), updated(after), nodes),
    )
