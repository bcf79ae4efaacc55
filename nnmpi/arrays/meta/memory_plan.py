"""Memory for logged calls: each new array gets a place in one arena, planned by its first and last
use.

    calls   0 1 2 3 4
    a       ###             two arrays may have the same place,
    b         #####         if no call uses both and their lifetimes are apart
    c             ###
"""

import math
from bisect import bisect, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays.meta.array import MetaArray
from nnmpi.arrays.meta.log import Call, arrays_in
from nnmpi.arrays.meta.shapes import axis_order, owner, refuse

ALIGN = 64
"""Each array starts at a multiple of this many bytes: a cache line."""

PAGE = 4096
"""An arena starts at a multiple of this many bytes."""


class Lifetime(NamedTuple):
    """An array without data that owns its memory, and the first and the last call that use it."""

    array: Any
    first: int
    last: int

    @property
    def room(self) -> int:
        """The bytes of the array, up to the next aligned one."""
        return -(-int(self.array.nbytes) // ALIGN) * ALIGN


class MemoryPlan(NamedTuple):
    """Where in an arena of `size` bytes arrays lie: the offsets by the ids of the arrays."""

    offsets: Mapping[int, int]
    size: int


def lifetimes(calls: Sequence[Call], uses: Iterable[tuple[Any, int]] = ()) -> dict[int, Lifetime]:
    """The lifetimes of all arrays without data in calls, by id; `uses` are further uses, each with
    the number of a call."""
    found = dict[int, Lifetime]()
    of_calls = ((a, k) for k, call in enumerate(calls) for a in _metas((call.args, call.options)))
    for array, k in (*of_calls, *uses):
        memory = owner(array)
        known = found.get(id(memory), Lifetime(memory, k, k))
        found[id(memory)] = Lifetime(memory, min(known.first, k), max(known.last, k))
    return found


def _metas(value: Any) -> Iterator[MetaArray]:
    return (a for a in arrays_in(value) if isinstance(a, MetaArray))


class _Arena:
    """Arrays that have places already."""

    def __init__(self) -> None:
        self._placed, self._offsets = list[tuple[int, Lifetime]](), dict[int, int]()

    @property
    def size(self) -> int:
        return max((start + a.room for start, a in self._placed), default=0)

    @property
    def plan(self) -> MemoryPlan:
        return MemoryPlan(self._offsets, self.size)

    def place(self, arrays: Iterable[Lifetime], most: float = math.inf) -> list[Lifetime]:
        """Places arrays, the largest first, each at the lowest offset that is free while it lives;
        returns those for which there is no place below `most`."""
        left = list[Lifetime]()
        for new in sorted(arrays, key=lambda a: -a.room):
            offset = 0
            for start, other in self._placed:
                if other.first <= new.last and new.first <= other.last:
                    if start - offset >= new.room:
                        break
                    offset = max(offset, start + other.room)
            if offset + new.room > most:
                left.append(new)
                continue
            insort(self._placed, (offset, new), key=itemgetter(0))
            self._offsets[id(new.array)] = offset
        return left


def plan(arrays: Iterable[Lifetime]) -> MemoryPlan:
    """The places of arrays in one arena."""
    arena = _Arena()
    arena.place(arrays)
    return arena.plan


def plan_in_parts(
    arrays: Iterable[Lifetime], starts: Sequence[int]
) -> tuple[MemoryPlan, MemoryPlan]:
    """The places of arrays in two arenas, of calls in parts between which other calls may be made:
    one that keeps its contents between parts, and a scratch arena for arrays that live within one
    part, and find no place in the first one."""
    kept, local, arena = list[Lifetime](), list[Lifetime](), _Arena()
    for a in arrays:
        (local if bisect(starts, a.first) == bisect(starts, a.last) else kept).append(a)
    arena.place(kept)
    left = arena.place(local, arena.size)
    return arena.plan, plan(left)


Places: TypeAlias = Mapping[int, tuple[np.ndarray, int]]
"""The memory of arrays, by their ids: a buffer of bytes, and where in it an array begins."""


def arena_of(size: int) -> np.ndarray:
    """Memory for so many bytes, which begins at a page."""
    memory = np.empty(size + PAGE, np.uint8)
    return memory[-memory.ctypes.data % PAGE :][:size]


def places_in(arena: np.ndarray, plan: MemoryPlan) -> Places:
    """The places of the arrays of a plan in an arena."""
    return {key: (arena, offset) for key, offset in plan.offsets.items()}


def places_of(given: Iterable[tuple[Any, np.ndarray]]) -> Places:
    """The places of arrays without data that stand for given arrays."""
    return {id(owner(stand_in)): (_as_bytes(array), 0) for stand_in, array in given}


class Binding:
    """Replaces arrays without data by views of memory."""

    def __init__(self, *places: Places) -> None:
        self._places = {key: place for some in places for key, place in some.items()}

    def array(self, array: Any) -> np.ndarray:
        """The array with memory that an array without data stands for."""
        if not array.size:
            return np.empty(array.shape, array.dtype)
        memory = owner(array)
        buffer, start = self._places[id(memory)]
        offset = start + array.ctypes.data - memory.ctypes.data
        return np.ndarray(array.shape, array.dtype, buffer, offset, array.strides)

    def argument(self, value: Any) -> Any:
        """An argument of a call, with memory in the place of arrays without data."""
        if isinstance(value, MetaArray):
            return self.array(value)
        if isinstance(value, dict):
            return {name: self.argument(item) for name, item in value.items()}
        if isinstance(value, tuple | list):
            items = [self.argument(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if getattr(value, "__closure__", None) or hasattr(value, "func"):
            refuse("a kernel that calls a function with arrays of its own")
        return value

    def call(self, call: Call) -> Call:
        """A call on memory."""
        return Call(call.function, self.argument(call.args), self.argument(dict(call.options)))


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """The memory of an array without gaps, as bytes."""
    return array.transpose(axis_order(array)).reshape(-1).view(np.uint8)
