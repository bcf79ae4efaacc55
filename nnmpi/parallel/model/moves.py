"""Moves: which stretches of tensors are copied from who has them to who needs them, as a value.

    have    rank 0  w 0..5    rank 1  w 5..9
    need    rank 0  w 0..9    rank 1  w 0..9    rank 2  w 0..9

    moves   0 ─► 0  w 0..5    0 ─► 1  w 0..5    0 ─► 2  w 0..5
            1 ─► 0  w 5..9    1 ─► 1  w 5..9    1 ─► 2  w 5..9

Numbers may be needed in another part of their tensor than they are had in (`boxes.py`). Nothing
here communicates: `moving.py` carries a plan out.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.nn.place import Part, Place
from nnmpi.parallel.model.boxes import BoxRange, Runs, before, common, runs_of

Holder: TypeAlias = int | str
"""A rank, by its number; or a file, by its name, which each rank that needs it reads itself."""

VALUES = "values"
"""The name of the values of a tensor, among those of its running sums."""

Arrays: TypeAlias = tuple[tuple[str, np.dtype[Any]], ...]
"""Names and types of arrays that lie alike: the values of a tensor, or its running sums."""

GRAIN = 1 << 20
"""Numbers: of what several ranks have, no more are taken from one before another may be next."""


class TensorRange(NamedTuple):
    """Numbers lo to hi - 1 of a part of tensor i, in the order of its memory, had or needed.

    steps   how often the tensor was updated there
    """

    i: int
    holder: Holder
    steps: int
    lo: int
    hi: int
    part: Part

    @property
    def rank(self) -> int:
        """The holder, which is no file."""
        assert isinstance(self.holder, int)
        return self.holder


class MovedTensor(NamedTuple):
    """A tensor, and what is moved of it.

    axes   in the order of memory
    """

    path: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    arrays: Arrays

    @property
    def itemsize(self) -> int:
        """The bytes of a number, in all arrays."""
        return sum(dtype.itemsize for _, dtype in self.arrays)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * self.itemsize


class Move(NamedTuple):
    """What a need gets of a holding."""

    have: TensorRange
    need: TensorRange
    ranges: tuple[BoxRange, ...]

    @property
    def size(self) -> int:
        """How many numbers."""
        return sum(one.hi - one.lo for one in self.ranges)

    @property
    def is_message(self) -> bool:
        """Whether one rank sends it to another."""
        return isinstance(self.have.holder, int) and self.have.holder != self.need.holder

    def runs(self, axes: Sequence[int]) -> Runs:
        """Where its numbers are in both parts, in the order in which they are had."""
        found = [runs_of(one, self.have.part, self.need.part, axes) for one in self.ranges]
        if len(found) == 1:
            return found[0]
        joined = [np.concatenate(arrays) for arrays in zip(*found, strict=True)]
        order = np.argsort(joined[0])
        return Runs(*(a[order] for a in joined))


class Piece(NamedTuple):
    """Numbers lo to hi - 1 of a move, in the order of its runs, of one array."""

    move: Move
    name: str
    dtype: np.dtype[Any]
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        """Its bytes in a message."""
        return (self.hi - self.lo) * self.dtype.itemsize


class MovePlan(NamedTuple):
    """The moves of some tensors, in the order of these; the same on all ranks."""

    tensors: tuple[MovedTensor, ...]
    needs: tuple[TensorRange, ...]
    moves: tuple[Move, ...]

    def together(self, nbytes: int) -> "Iterator[MovePlan]":
        """Plans of some tensors each, one behind the other: of at most so many bytes, or one."""
        found, room = dict[int, int](), 0  # the number of the plan of each tensor
        number = 0
        for i in dict.fromkeys(need.i for need in self.needs):
            room -= self.tensors[i].nbytes
            if room < 0:
                number, room = number + 1, nbytes - self.tensors[i].nbytes
            found[i] = number
        needs = groupby(self.needs, lambda need: found[need.i])
        moves = {k: (*g,) for k, g in groupby(self.moves, lambda move: found[move.need.i])}
        for k, some in needs:
            yield MovePlan(self.tensors, (*some,), moves.get(k, ()))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The ranks that send something, each with one that needs it."""
        pairs = dict.fromkeys((move.have.holder, move.need.holder) for move in self.moves)
        return [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int) and a != b]

    def messages(self, source: Holder, to: Holder, most: int) -> Iterator[list[Piece]]:
        """What one of them gives the other, in messages of at most so many bytes."""
        message, room = list[Piece](), most
        for move in self.moves:
            if (move.have.holder, move.need.holder) != (source, to):
                continue
            for name, dtype in self.tensors[move.need.i].arrays:
                at, size = 0, move.size
                while at < size:
                    stop = min(size, at + room // dtype.itemsize)
                    if stop == at:
                        yield message
                        message, room = [], most
                        continue
                    message.append(Piece(move, name, dtype, at, stop))
                    at, room = stop, room - message[-1].nbytes
        if message:
            yield message


def plan_moves(
    tensors: Sequence[MovedTensor],
    have: Iterable[TensorRange],
    need: Iterable[TensorRange],
    nodes: Sequence[int],
) -> MovePlan:
    """Each number that a rank needs, once: from its own memory, else from a rank of its node, else
    from any rank, else from a file; of several from the one that has sent least.

    `nodes` has the number of each rank's node. No rank passes on what it is sent: what one rank
    alone has it sends to all that need it, and what several have they send in equal shares. Raises
    ValueError for a number that is nowhere.
    """
    had, needs = _by_tensor(have), _by_tensor(need)
    choice, moves = _Choice(nodes), list[Move]()
    for i in sorted(needs):
        moves += choice.moves(tensors[i], [*dict.fromkeys(had[i])], needs[i])
    in_order = chain.from_iterable(needs[i] for i in sorted(needs))
    return MovePlan(tuple(tensors), tuple(in_order), tuple(moves))


def _by_tensor(ranges: Iterable[TensorRange]) -> dict[int, list[TensorRange]]:
    found = defaultdict[int, list[TensorRange]](list)
    for one in ranges:
        found[one.i].append(one)
    return found


class _Held(NamedTuple):
    """The numbers lo to hi - 1 of a box that a holding has."""

    lo: int
    hi: int
    have: TensorRange


class _Choice:
    """Chooses holders, and counts the bytes that each one sends."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes, self._sent = nodes, defaultdict[Holder, int](int)

    def moves(
        self, tensor: MovedTensor, had: Sequence[TensorRange], needs: Sequence[TensorRange]
    ) -> Iterator[Move]:
        """The moves of a tensor."""
        cells, known = _cells(tensor.shape, had), dict[Part, list[_Held]]()
        for need in needs:
            found = defaultdict[TensorRange, list[BoxRange]](list)
            for cell, there in cells:
                box = common(cell, need.part)
                lo, hi = (before(n, need.part, box, tensor.axes) for n in (need.lo, need.hi))
                if lo == hi:
                    continue
                if not there:
                    raise _no_part(tensor, had)
                if box not in known:
                    known[box] = [_held(one, box, tensor.axes) for one in there]
                for one in self._chosen(tensor, need, box, known[box], lo, hi):
                    _append(found[one.have], BoxRange(box, one.lo, one.hi))
            yield from (Move(have, need, tuple(ranges)) for have, ranges in found.items())

    def _chosen(
        self,
        tensor: MovedTensor,
        need: TensorRange,
        box: Part,
        held: Sequence[_Held],
        lo: int,
        hi: int,
    ) -> Iterator[_Held]:
        """Stretches that make up numbers lo to hi - 1 of a box, and who is to give each of them."""
        while lo < hi:
            there = [one for one in held if one.lo <= lo < one.hi]
            if not there:
                raise _no_number(tensor, need, BoxRange(box, lo, lo + 1))
            far, _, best = min(
                (self._far(one.have, need), self._sent[one.have.holder], k)
                for k, one in enumerate(there)
            )
            end = min(hi, there[best].hi, *(one.lo for one in held if one.lo > lo))
            if far:
                end = min(end, lo + GRAIN) if len(there) > 1 else end
                self._sent[there[best].have.holder] += (end - lo) * tensor.itemsize
            yield _Held(lo, end, there[best].have)
            lo = end

    def _far(self, have: TensorRange, need: TensorRange) -> int:
        """0 in a rank's own memory, 1 on its node, 2 on another one, 3 in a file."""
        a, b = have.holder, need.holder
        if isinstance(a, str) or isinstance(b, str):
            return 3
        return 0 if a == b else 1 + (self._nodes[a] != self._nodes[b])


def _append(ranges: list[BoxRange], one: BoxRange) -> None:
    """Appends a range, or makes the last one longer."""
    if ranges and ranges[-1].box == one.box and ranges[-1].hi == one.lo:
        one = one._replace(lo=ranges.pop().lo)
    ranges.append(one)


def _no_part(tensor: MovedTensor, had: Sequence[TensorRange]) -> ValueError:
    parts = [*dict.fromkeys(one.part for one in had)]
    return ValueError(
        f"{tensor.path}: the parts {parts} that ranks have do not make up its shape "
        f"{tensor.shape}, each number once"
    )


def _no_number(tensor: MovedTensor, need: TensorRange, one: BoxRange) -> ValueError:
    (at,) = runs_of(one, need.part, need.part, tensor.axes).target
    size = Place(tensor.path, tensor.shape, need.part).size
    return ValueError(
        f"{tensor.path}: no rank has number {at} of the {size} of its part {need.part}; give the "
        "ranks all that the ranks had that it was taken from"
    )


def _cells(
    shape: tuple[int, ...], had: Sequence[TensorRange]
) -> list[tuple[Part, list[TensorRange]]]:
    """Boxes that make up the whole tensor, each within or without each part; and the holdings whose
    parts they are in."""
    parts = {one.part for one in had}
    edges = [
        sorted({0, n, *chain.from_iterable(part[k] for part in parts)}) for k, n in enumerate(shape)
    ]
    found = {cell: list[TensorRange]() for cell in product(*map(pairwise, edges))}
    for one in had:
        inside = (
            pairwise(at[bisect_left(at, a) : bisect_left(at, b) + 1])
            for at, (a, b) in zip(edges, one.part, strict=True)
        )
        for cell in product(*inside):
            found[cell].append(one)
    return [*found.items()]


def _held(one: TensorRange, box: Part, axes: Sequence[int]) -> _Held:
    lo, hi = (before(n, one.part, box, axes) for n in (one.lo, one.hi))
    return _Held(lo, hi, one)
