"""State that exists on one rank only, and would be lost with it.

             its replicas have                  unreplicated, if no rank along tp or pp has it
replica      the same                           nothing; everything on a rank without replicas
zero 1, 2    all values, other optimizer state  optimizer state of its shards; masters, if any
zero 3       other values and optimizer state   its shards
served       servers have other slices          a server's slice; nothing of a worker
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from nnmpi.nn.place import Place, Range, whole
from nnmpi.parallel.arrangement.arrangement import Arrangement, ranks_of_variables
from nnmpi.parallel.arrangement.flat_buffer import FlatSlice
from nnmpi.parallel.arrangement.state_bytes import bytes_of_other, optimizer_bytes
from nnmpi.parallel.mesh import REPLICAS


class Unreplicated(NamedTuple):
    """The variables that have state on one rank only, by their numbers.

    trained   parameters in its own slices of the flat buffer
    others    frozen parameters and buffers
    """

    trained: frozenset[int]
    others: frozenset[int]


def unreplicated(a: Arrangement, rank: int, lost: Collection[int] = ()) -> Unreplicated:
    """Returns the variables with state that is on this rank only; ranks in `lost` do not count as
    copies."""
    held, kind, stages = a.model_on(rank), a.store, ranks_of_variables(a)
    at = a.mesh.coordinates(rank) if rank < a.mesh.size else {}
    others_lost = [a.mesh.coordinates(r) for r in lost if r != rank]

    def is_unique(variable: int, *axes: str) -> bool:
        """Returns True if no other rank along `axes` has the variable; ranks along tp count where
        it is not sharded."""
        if rank >= a.mesh.size:  # a server
            return True
        along = {*axes} if variable in a.sharding.variables else {*axes, "tp"}
        have = {
            axis: {at[axis]} if axis not in along else range(n) for axis, n in a.mesh.axes.items()
        }
        if "pp" in along:
            have["pp"] = {*stages[variable]}
        if "tp" in along:
            have["tp"] = {t for t in have["tp"] if a.sharding.branches.has(variable, t)}
        lost_too = sum(all(r[axis] in ids for axis, ids in have.items()) for r in others_lost)
        return prod(map(len, have.values())) - lost_too == 1

    axes = () if kind.is_sharded else REPLICAS
    # ZeRO 1 divides a tied parameter among the ranks of all its stages, so stages hold no copies
    if kind.scatters or not kind.is_sharded:
        axes = (*axes, "pp")
    readable = {v for v, _ in clipped(a, rank, kind.owned(a, rank))}
    untrained = (other.variable for other in held.others if rank < a.mesh.size)
    return Unreplicated(
        frozenset(v for v in readable if is_unique(v, *axes)),
        frozenset(v for v in untrained if is_unique(v, *REPLICAS, "pp")),
    )


def place_of(a: Arrangement, v: int, rank: int) -> Place:
    """Returns the place, within the whole tensor, of the part of variable `v` that a rank has."""
    path, shape = a.graph.variables[v].path, a.graph.variables[v].shape
    part, cut = whole(shape), a.sharding.variables.get(v)
    if cut is not None:
        tp = a.mesh.coordinates(min(rank, a.mesh.size - 1))["tp"]
        side = cut.bounds[tp], cut.bounds[tp + 1]
        part = (*part[: cut.axis], side, *part[cut.axis + 1 :])
    return Place(path, shape, part)


def clipped(a: Arrangement, rank: int, slices: Iterable[FlatSlice]) -> Iterator[tuple[int, Range]]:
    """Yields (number of the variable, range) for each part of a rank's parameters within these
    slices of its flat buffer."""
    held, ordered = a.model_on(rank), sorted(s for s in slices if s[0] < s[1])
    ends = [stop for _, stop in ordered]
    for variable, (start, _) in zip(held.trained, held.spans, strict=True):
        end = start + variable.size
        for lo, hi in ordered[bisect_right(ends, start) :]:
            if lo >= end:
                break
            place = place_of(a, variable.variable, rank)
            yield variable.variable, place.range(max(lo - start, 0), min(hi, end) - start)


def updated_ranges(a: Arrangement, rank: int) -> Iterator[tuple[int, Range]]:
    """Yields (number of the variable, range) for all trained elements that a rank updates."""
    return clipped(a, rank, a.owned_ranges(rank) if a.store.buckets else a.store.owned(a, rank))


def unreplicated_bytes(a: Arrangement, rank: int) -> int:
    """Returns the bytes that would be lost with a rank."""
    only_here, readable = unreplicated(a, rank), clipped(a, rank, a.store.owned(a, rank))
    sizes = [numbers.size for v, numbers in readable if v in only_here.trained]
    return bytes_of(a, rank, only_here, sizes, has_values=not a.store.has_all_values)


def bytes_of(
    a: Arrangement, rank: int, state: Unreplicated, sizes: Sequence[int], has_values: bool = True
) -> int:
    """Returns the bytes of some state on a rank: values and optimizer state of trained ranges with
    these sizes, and frozen parameters and buffers. Masters count as optimizer state."""
    n = sum(sizes)
    values = n * a.dtype.itemsize if has_values and not a.is_mixed else 0
    frozen = (variable for variable in a.model_on(rank).others if variable.variable in state.others)
    return values + optimizer_bytes(a, n) + sum(bytes_of_other(a, variable) for variable in frozen)
