"""Plans memory for logged calls: gives each new array a place in an arena, by first and last use.

calls   0 1 2 3 4
a       ###             two arrays may have the same place,
b         #####         if no call uses both and their lifetimes are apart
c             ###
"""

import math
from bisect import bisect, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays.meta.array import MetaArray
from nnmpi.arrays.meta.log import Call, arrays_in
from nnmpi.arrays.meta.shapes import axis_order, owner, refuse

ALIGN = 64
"""Each array starts at a multiple of this many bytes, which is a cache line."""

PAGE = 4096
"""An arena starts at a multiple of this many bytes."""

EFFORT = 200_000
"""The approximate number of pairs of arrays to compare when a plan is made."""

ENOUGH = 1 << 18
"""A plan is good enough if it needs at most this many bytes more than are in use at once."""


class Lifetime(NamedTuple):
    """An array without data, and the first and the last call that use it."""

    array: Any
    first: int
    last: int

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return int(self.array.nbytes)

    @property
    def room(self) -> int:
        """The bytes of the array, rounded up to a multiple of ALIGN."""
        return -(-self.nbytes // ALIGN) * ALIGN


class MemoryPlan(NamedTuple):
    """The offset of each array, by id, in an arena of `size` bytes."""

    offsets: Mapping[int, int]
    size: int


def lifetimes(
    calls: Sequence[Call],
    uses: Iterable[tuple[Any, int]] = (),
    of: type[np.ndarray] = MetaArray,
) -> dict[int, Lifetime]:
    """Returns the lifetimes of all arrays of the type `of` in calls, by the id of the array that
    owns the memory. `uses` are further uses, as (array, number of a call)."""
    found = dict[int, Lifetime]()
    in_calls = ((a, k) for k, c in enumerate(calls) for a in arrays_in((c.args, c.options)))
    of_calls = ((a, k) for a, k in in_calls if isinstance(a, of))
    for array, k in (*of_calls, *uses):
        memory = owner(array)
        known = found.get(id(memory), Lifetime(memory, k, k))
        found[id(memory)] = Lifetime(memory, min(known.first, k), max(known.last, k))
    return found


def most_alive(
    arrays: Iterable[Lifetime],
    start: float = 0,
    stop: float = math.inf,
    size: Callable[[Lifetime], int] = attrgetter("room"),
) -> int:
    """Returns the most bytes of arrays that are in use at the same time, during calls `start` to
    `stop` - 1; `size` gives those of an array, by default `room`, rounded up for alignment."""
    changes = Counter[float]()
    for a in arrays:
        if a.first < stop and a.last >= start:
            changes[max(a.first, start)] += size(a)
            changes[a.last + 1] -= size(a)
    return max(accumulate(changes[k] for k in sorted(changes)), default=0)


class _Placed(NamedTuple):
    """Bytes `start` to `stop` - 1 of an arena, an array's in calls `first` to `last`."""

    start: int
    stop: int
    first: float
    last: float
    array: Lifetime | None = None


def _placed(order: Iterable[Lifetime], fixed: Iterable[_Placed]) -> list[_Placed]:
    """Assigns each array, in the given order, the lowest offset that is free while it is used;
    returns the new places and the `fixed` ones, sorted by where they start."""
    arena = sorted(fixed, key=itemgetter(0))
    for new in order:
        offset, room, (_, begins, ends) = 0, new.room, new
        for start, stop, first, last, _ in arena:
            if first <= ends and begins <= last:
                if start - offset >= room:
                    break
                offset = max(offset, stop)
        insort(arena, _Placed(offset, offset + room, begins, ends, new), key=itemgetter(0))
    return arena


def _size(arena: Iterable[_Placed]) -> int:
    return max((placed.stop for placed in arena), default=0)


def _smallest(arrays: Iterable[Lifetime], fixed: Sequence[_Placed] = ()) -> list[_Placed]:
    """Places arrays in several orders around `fixed`; returns the smallest arena's places."""
    order = sorted(arrays, key=lambda a: -a.room)
    least = max(_size(fixed), most_alive([*order, *(p.array for p in fixed if p.array)]))
    last = best = _placed(order, fixed)
    for _ in range(EFFORT // (len(order) ** 2 + 1)):
        if _size(best) <= least + ENOUGH:
            break
        highest = max(last, key=itemgetter(1)).array
        assert highest is not None
        order = [highest, *(a for a in order if a is not highest)]
        last = _placed(order, fixed)
        best = min(best, last, key=_size)
    return best


def _plan_of(arena: Iterable[_Placed], base: int = 0) -> MemoryPlan:
    """Returns the MemoryPlan of the arrays at offset `base` or later, with offsets from `base`."""
    offsets = {id(p.array.array): p.start - base for p in arena if p.array and p.start >= base}
    return MemoryPlan(offsets, max(_size(arena) - base, 0))


def plan(arrays: Iterable[Lifetime]) -> MemoryPlan:
    """Plans arrays in one arena: those in use at the same time do not overlap."""
    return _plan_of(_smallest(arrays))


def plan_in_parts(
    arrays: Sequence[Lifetime], starts: Sequence[int], in_flight: int
) -> tuple[MemoryPlan, MemoryPlan]:
    """Plans memory for calls that run in several parts (such as a forward and a backward pass),
    with other computations between them; part k begins with call starts[k].

    Returns the plans of two arenas. The first keeps its contents between parts, and exists
    `in_flight` times, once for each computation that has begun. The second is scratch memory, for
    arrays that live within one part and find no room in the first.
    """
    if in_flight == 1:  # nothing is shared, and arrays of both kinds fill each other's gaps
        return plan(arrays), MemoryPlan({}, 0)
    kept, local = list[Lifetime](), list[Lifetime]()
    for a in arrays:
        (local if bisect(starts, a.first) == bisect(starts, a.last) else kept).append(a)
    inner = _smallest(kept)
    border = _size(inner)
    wall = _Placed(border, border, 0, math.inf)  # no array lies across it
    both = _smallest(local, [*inner, wall])
    return _plan_of([p for p in both if p.start < border]), _plan_of(both, border)


Places: TypeAlias = Mapping[int, tuple[np.ndarray, int]]
"""The memory of arrays, by their ids: a buffer of bytes, and the offset of the array in it."""


def arena_of(size: int) -> np.ndarray:
    """Allocates `size` bytes that begin at a page."""
    memory = np.empty(size + PAGE, np.uint8)
    return memory[-memory.ctypes.data % PAGE :][:size]


def places_in(arena: np.ndarray, plan: MemoryPlan) -> Places:
    """Returns where a plan's arrays lie in the memory `arena`."""
    return {key: (arena, offset) for key, offset in plan.offsets.items()}


def places_of(given: Iterable[tuple[Any, np.ndarray]]) -> Places:
    """Returns places for arrays without data: the first of a pair gets the memory of the second."""
    return {id(owner(stand_in)): (_as_bytes(array), 0) for stand_in, array in given}


class Binding:
    """Puts views of real memory in the place of arrays without data, by id."""

    def __init__(self, *places: Places) -> None:
        self._places = {key: place for some in places for key, place in some.items()}

    def array(self, array: Any) -> np.ndarray:
        """Returns the view of memory that replaces an array without data."""
        if not array.size:
            return np.empty(array.shape, array.dtype)
        memory = owner(array)
        buffer, start = self._places[id(memory)]
        offset = start + array.ctypes.data - memory.ctypes.data
        return np.ndarray(array.shape, array.dtype, buffer, offset, array.strides)

    def argument(self, value: Any) -> Any:
        """Returns an argument of a call, with arrays without data replaced by views of memory."""
        if isinstance(value, MetaArray):
            return self.array(value)
        if isinstance(value, dict):
            return {name: self.argument(item) for name, item in value.items()}
        if isinstance(value, tuple | list):
            items = [self.argument(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if getattr(value, "__closure__", None) or isinstance(value, partial):
            refuse("a kernel that calls a function with arrays of its own")
        return value

    def call(self, call: Call) -> Call:
        """Returns a call, with arrays without data replaced by views of memory."""
        return Call(call.function, self.argument(call.args), self.argument(dict(call.options)))


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Returns the memory of a gapless array as a flat array of bytes."""
    return array.transpose(axis_order(array)).reshape(-1).view(np.uint8)
