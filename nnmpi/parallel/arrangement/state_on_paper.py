"""Lists the arrays of state that a rank has, and those lost with it, without building a model.

kind of run         replicas of a rank have      lost with a rank, unless others along tp or pp have
                                                 it
plain replicas      the same state               nothing; everything on a rank without replicas
ZeRO                other parts of the state     its part of values, masters and optimizer state
parameter servers   (servers) other slices       a server's slice; nothing of a worker

Masters are the float32 values of 16-bit parameters. State of one replica alone, such as residuals
of compression, is not listed: the others continue without it. Nor is state that users' modules
define.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from nnmpi.arrays.dtypes import is_float, named
from nnmpi.nn.place import Place, StateArray, whole
from nnmpi.optim import state as states
from nnmpi.optim.loss_scale import LossScale, Scaler
from nnmpi.optim.of_options import state_arrays_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.flat_buffer import FlatSlice
from nnmpi.parallel.arrangement.rank_model import HeldVariable

Axes: TypeAlias = Mapping[str, Sequence[int]]
"""By path of a parameter: the order of its axes in memory; others are in C order."""

IN_ORDER: Axes = {}


def state_on_paper(a: Arrangement, rank: int, axes: Axes = IN_ORDER) -> Iterator[StateArray]:
    """Yields the arrays that a rank keeps from step to step, without data, with the names, ranges
    and dtypes of training.

    axes   a dict: path of a parameter or buffer -> the order of its axes in memory, where it is not
           C order
    """
    held, of_trained = a.model_on(rank), defaultdict[int, list[StateArray]](list)
    slices = a.owned_ranges(rank) if a.store.buckets else a.store.owned(a, rank)
    for variable, x in _clipped(a, rank, slices, axes):
        of_trained[variable].append(x._replace(dtype=a.updated_dtype.name))
    others = held.others if rank < a.mesh.size else ()  # servers update nothing else
    of_others = {v.variable: [_part(a, rank, v, axes)] for v in others}
    for _, arrays in sorted({**of_trained, **of_others}.items()):
        yield from arrays
    for variable in (v.variable for v in held.trained if of_trained):
        path = a.graph.variables[variable].path
        for x in of_trained[variable]:
            yield from (x.named(f"{path}.{name}") for name in state_arrays_of(a.config))
        count = Place.of_whole(f"{path}.{states.STEP}", ())
        yield StateArray(count, (), 0, 1, "int64")
    if a.is_mixed:
        scaler = Scaler(LossScale.of(a.config.dtype))
        yield from (x.on_paper() for x in scaler.state_arrays())


def untrained_on_paper(a: Arrangement, rank: int, axes: Axes = IN_ORDER) -> Iterator[StateArray]:
    """Yields a rank's part of each buffer and frozen parameter; `axes` as in `state_on_paper`."""
    return (_part(a, rank, held, axes) for held in a.model_on(rank).others)


def held_on_paper(a: Arrangement, rank: int, axes: Axes = IN_ORDER) -> Iterator[StateArray]:
    """Yields a rank's part of each parameter and buffer, without data: what it needs before
    training starts. `axes` as in `state_on_paper`."""
    held = a.model_on(rank)
    for variable in sorted((*held.trained, *held.others), key=attrgetter("variable")):
        x = _part(a, rank, variable, axes)
        yield x._replace(dtype=a.updated_dtype.name) if is_float(named(x.dtype)) else x


def place_of(a: Arrangement, v: int, rank: int) -> Place:
    """Returns path, whole shape and part of variable `v` on a rank."""
    path, shape = a.graph.variables[v].path, a.graph.variables[v].shape
    part, cut = whole(shape), a.sharding.variables.get(v)
    if cut is not None:
        tp = a.mesh.coordinates(min(rank, a.mesh.size - 1))["tp"]
        side = cut.bounds[tp], cut.bounds[tp + 1]
        part = (*part[: cut.axis], side, *part[cut.axis + 1 :])
    return Place(path, shape, part)


def _part(a: Arrangement, rank: int, held: HeldVariable, axes: Axes) -> StateArray:
    """Returns a rank's part `held` of a variable, with the dtype of its values, not of masters."""
    variable, place = a.graph.variables[held.variable], place_of(a, held.variable, rank)
    dtype, order = np.dtype(variable.dtype), axes.get(place.path, range(len(place.shape)))
    if is_float(dtype):
        dtype = a.dtype if variable.is_parameter else a.updated_dtype
    return StateArray(place, (*order,), 0, place.size, dtype.name, not variable.is_parameter)


def _clipped(
    a: Arrangement, rank: int, slices: Iterable[FlatSlice], axes: Axes
) -> Iterator[tuple[int, StateArray]]:
    """Yields (number of the parameter, its part without data) for each trained parameter in the
    given slices of a rank's flat buffer."""
    held, ordered = a.model_on(rank), sorted(s for s in slices if s[0] < s[1])
    ends = [stop for _, stop in ordered]
    for variable, (start, _) in zip(held.trained, held.spans, strict=True):
        end, x = start + variable.size, _part(a, rank, variable, axes)
        for lo, hi in ordered[bisect_right(ends, start) :]:
            if lo >= end:
                break
            yield variable.variable, x._replace(lo=max(lo - start, 0), hi=min(hi, end) - start)


# ---- on one rank only


class Holders:
    """An index of which ranks have which ranges of state; lists[r] are rank r's arrays."""

    def __init__(self, lists: Sequence[Sequence[StateArray]]) -> None:
        self._lists = lists
        self._ranks = defaultdict[object, dict[tuple[int, int], set[int]]](dict)
        for rank, arrays in enumerate(lists):
            for x in arrays:
                self._ranks[x.name, x.place.part].setdefault((x.lo, x.hi), set()).add(rank)

    def only_on(self, rank: int, lost: Collection[int] = ()) -> list[StateArray]:
        """Returns a rank's arrays of which the others, without `lost`, have no whole copy."""
        gone = {rank, *lost}
        return [x for x in self._lists[rank] if not self._is_elsewhere(x, gone)]

    def _is_elsewhere(self, x: StateArray, gone: Collection[int]) -> bool:
        ranges = self._ranks[x.name, x.place.part]
        if ranges[x.lo, x.hi].difference(gone):
            return True
        at = x.lo
        for lo, hi in sorted(r for r, ranks in ranges.items() if ranks.difference(gone)):
            at = max(at, hi) if lo <= at else at
        return at >= x.hi


@cached
def holders_on_paper(a: Arrangement) -> Holders:
    """Returns which ranks have which ranges of state, without building models."""
    return Holders([[*state_on_paper(a, rank)] for rank in range(a.ranks)])


def unreplicated_bytes(a: Arrangement, rank: int) -> int:
    """Returns the bytes of training state that only this rank has, and that are lost with it."""
    return sum(x.nbytes for x in holders_on_paper(a).only_on(rank))
