"""Moves: which ranges of tensors are copied from who has them to who needs them, as a value.

    have    rank 0  w 0..5    rank 1  w 5..9
    need    rank 0  w 0..9    rank 1  w 0..9    rank 2  w 0..9

    moves   0 ─► 0  w 0..5    0 ─► 1  w 0..5    0 ─► 2  w 0..5
            1 ─► 0  w 5..9    1 ─► 1  w 5..9    1 ─► 2  w 5..9

Numbers may be needed in another part of their tensor than they are had in. A part is a box of the
whole tensor. The numbers of a box that is in two parts follow each other in both in one order, that
of memory, if not without gaps. So what a range of the one part has for a range of the other is a
range of the box, and its numbers are listed only when they are copied:

    had  1 2 | 3 4    needed  1 | 2 3 | 4    in both  | 3 |    the rows of the box
         5 6 | 7 8            5 | 6 7 | 8             | 7 |    are the runs

Nothing here communicates: `nearest.py` finds a plan, and `moving.py` carries it out.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.nn.place import Part, Range
from nnmpi.parallel.arrangement.exchanges import Traffic

# ---- boxes of tensors


class Runs(NamedTuple):
    """Arrays of where runs of numbers start in the part that is had and in the part that is needed,
    and of their lengths; in the order of the first.

    A row of a matrix may be many runs, so they are arrays, not a `Range` each.
    """

    source: np.ndarray
    target: np.ndarray
    length: np.ndarray

    def cut(self, lo: int, hi: int) -> "Runs":
        """The runs of numbers lo to hi - 1, counted along all of these runs."""
        ends = np.cumsum(self.length)
        first, stop = np.searchsorted(ends, lo, "right"), np.searchsorted(ends, hi) + 1
        runs = Runs(*(a[first:stop].copy() for a in self))
        runs.shorten(lo - int(ends[first] - self.length[first]), int(ends[stop - 1]) - hi)
        return runs

    def shorten(self, first: int, last: int) -> None:
        """Leaves so many numbers out of the first run and of the last."""
        for array, less in zip(self, (-first, -first, first), strict=True):
            array[0] -= less
        self.length[-1] -= last


def common(a: Part, b: Part) -> Part:
    """The box that is in both; a side of it may be empty, but is not turned around."""
    sides = zip(a, b, strict=True)
    return tuple((lo := max(i, k), max(lo, min(j, m))) for (i, j), (k, m) in sides)


def overlap(numbers: Range, box: Part, axes: Sequence[int]) -> Range:
    """The numbers of a range that are in a box within its box."""
    lo, hi = (before(n, numbers.box, box, axes) for n in (numbers.lo, numbers.hi))
    return Range(numbers.tensor, box, lo, hi)


def before(n: int, part: Part, box: Part, axes: Sequence[int]) -> int:
    """How many numbers of a box are among the first n of a part that it is in.

    n is written in digits, one an axis in the order of memory: those before it have the same first
    digits, and then a smaller one.
    """
    stride, inner = (math.prod(b - a for a, b in sides) for sides in (part, box))
    if n >= stride or not inner:
        return inner
    count = 0
    for k in axes:
        (start, stop), (a, b) = part[k], box[k]
        stride, inner = stride // (stop - start), inner // (b - a)
        digit, n = start + n // stride, n % stride
        count += (min(max(digit, a), b) - a) * inner
        if not a <= digit < b:
            break
    return count


def runs_of(numbers: Range, source: Part, target: Part, axes: Sequence[int]) -> Runs:
    """Where a range of a box is in two parts that it is in.

    A run is a row of the box along the last axes, all but the first of which are whole in both.
    """
    box, outer, length = numbers.box, list(axes), 1
    while outer:
        k = outer.pop()
        length *= box[k][1] - box[k][0]
        if not box[k] == source[k] == target[k]:
            break
    rows = np.arange(numbers.lo // length, -(-numbers.hi // length))
    starts_there, here = (_starts(rows, box, part, outer, axes) for part in (source, target))
    runs = Runs(starts_there, here, np.full(len(rows), length))
    runs.shorten(numbers.lo % length, -numbers.hi % length)
    return runs


def _starts(
    rows: np.ndarray, box: Part, part: Part, outer: Sequence[int], axes: Sequence[int]
) -> np.ndarray:
    """Where rows of a box start in a part; `outer` are the axes along which they are numbered."""
    first, strides, stride = 0, dict[int, int](), 1
    for k in reversed(axes):
        strides[k] = stride
        first += (box[k][0] - part[k][0]) * stride
        stride *= part[k][1] - part[k][0]
    starts = np.full(len(rows), first)
    for k in reversed(outer):
        rows, digits = np.divmod(rows, box[k][1] - box[k][0])
        starts += digits * strides[k]
    return starts


# ---- moves


Holder: TypeAlias = int | str
"""A rank, by its number; or a file, by its name, which each rank that needs it reads itself."""

VALUES = "values"
"""The name of the values of a tensor, among the names of its optimizer state."""

Arrays: TypeAlias = tuple[tuple[str, np.dtype[Any]], ...]
"""Names and types of arrays that lie alike: the values of a tensor, or its optimizer state."""

TOGETHER = 1 << 25
"""Bytes of tensors that are moved together; one that has more is moved alone."""

MESSAGE = 1 << 22
UNDER_WAY = 1 << 27
"""Bytes of all messages that a rank may send at a time, and of those that it may receive."""


class MovedTensor(NamedTuple):
    """A tensor, and what is moved of it.

    axes          in the order of memory
    may_differ    whether copies may differ, as those of buffers: then all ranks get the first one
    """

    path: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    arrays: Arrays
    may_differ: bool = False

    @property
    def itemsize(self) -> int:
        """The bytes of a number, in all arrays."""
        return sum(dtype.itemsize for _, dtype in self.arrays)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * self.itemsize


class TensorMove(NamedTuple):
    """Numbers that are copied from a holder to a rank.

    have, need   the ranges of the two
    ranges       of boxes that are in both
    """

    holder: Holder
    have: Range
    rank: int
    need: Range
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """How many numbers."""
        return sum(numbers.size for numbers in self.ranges)

    def runs(self, axes: Sequence[int]) -> Runs:
        """Where its numbers are in both parts, in the order in which they are had."""
        of_boxes = [runs_of(numbers, self.have.box, self.need.box, axes) for numbers in self.ranges]
        if len(of_boxes) == 1:
            return of_boxes[0]
        joined = [np.concatenate(arrays) for arrays in zip(*of_boxes, strict=True)]
        order = np.argsort(joined[0])
        return Runs(*(a[order] for a in joined))


def longest_message(ranks: int) -> int:
    """The bytes of the longest message among so many ranks, of which each sends all others one."""
    return max(min(MESSAGE, UNDER_WAY // ranks), 1 << 16)


class MovePiece(NamedTuple):
    """Numbers lo to hi - 1 of a move, of one array: part of a message.

    They are counted along all runs of the move, which may be of several boxes.
    """

    move: TensorMove
    name: str
    dtype: np.dtype[Any]
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        """The bytes of this piece in a message."""
        return (self.hi - self.lo) * self.dtype.itemsize


class MovedBytes(NamedTuple):
    """Bytes of what a rank needs, which it has itself, reads from files or receives; and what it
    sends."""

    kept: int
    read: int
    sent: Traffic
    received: Traffic

    @property
    def needed(self) -> int:
        """The bytes of all that it needs."""
        return self.kept + self.read + self.received.bytes


class MovePlan(NamedTuple):
    """The moves of some tensors, in the order of these; the same on all ranks.

    tensors   by their paths
    needs     each with the rank that needs it
    """

    tensors: Mapping[str, MovedTensor]
    needs: tuple[tuple[int, Range], ...]
    moves: tuple[TensorMove, ...]

    def together(self) -> "Iterator[MovePlan]":
        """Plans of tensors that are moved together, one plan behind the other."""
        numbers, number, room = dict[str, int](), 0, 0  # the number of the plan of each tensor
        for path in dict.fromkeys(need.tensor for _, need in self.needs):
            room -= self.tensors[path].nbytes
            if room < 0:
                number, room = number + 1, TOGETHER - self.tensors[path].nbytes
            numbers[path] = number
        needs = groupby(self.needs, lambda row: numbers[row[1].tensor])
        moves = {k: (*g,) for k, g in groupby(self.moves, lambda move: numbers[move.need.tensor])}
        for k, some in needs:
            yield MovePlan(self.tensors, (*some,), moves.get(k, ()))

    def between(self) -> dict[tuple[Holder, int], list[TensorMove]]:
        """The moves from each holder to each rank."""
        by_ends = defaultdict[tuple[Holder, int], list[TensorMove]](list)
        for move in self.moves:
            by_ends[move.holder, move.rank].append(move)
        return by_ends

    def messages(self, moves: Iterable[TensorMove], most: int) -> Iterator[list[MovePiece]]:
        """The numbers of some moves, in messages of at most so many bytes."""
        message, room = list[MovePiece](), most
        for move in moves:
            for name, dtype in self.tensors[move.need.tensor].arrays:
                at, size = 0, move.size
                while at < size:
                    stop = min(size, at + room // dtype.itemsize)
                    if stop == at:
                        yield message
                        message, room = [], most
                        continue
                    message.append(MovePiece(move, name, dtype, at, stop))
                    at, room = stop, room - message[-1].nbytes
        if message:
            yield message

    def moved(self, ranks: int) -> list[MovedBytes]:
        """The bytes that each of so many ranks keeps, reads, sends and receives."""
        kept, read = [0] * ranks, [0] * ranks
        sent, received = [Traffic()] * ranks, [Traffic()] * ranks
        for plan in self.together():
            for (holder, rank), moves in plan.between().items():
                messages = [*plan.messages(moves, longest_message(ranks))]
                nbytes = sum(piece.nbytes for message in messages for piece in message)
                if isinstance(holder, str):
                    read[rank] += nbytes
                elif holder == rank:
                    kept[rank] += nbytes
                else:
                    sent[holder] += Traffic(nbytes, len(messages))
                    received[rank] += Traffic(nbytes, len(messages))
        return [MovedBytes(*row) for row in zip(kept, read, sent, received, strict=True)]
