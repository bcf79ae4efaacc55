"""Moves: which ranges of arrays are copied from the rank that has them to a rank that needs them.

    have    rank 0  w 0..5    rank 1  w 5..9
    need    rank 0  w 0..9    rank 1  w 0..9    rank 2  w 0..9

    moves   0 ─► 0  w 0..5    0 ─► 1  w 0..5    0 ─► 2  w 0..5
            1 ─► 0  w 5..9    1 ─► 1  w 5..9    1 ─► 2  w 5..9

A part is a box of the whole tensor. Where two parts overlap, the elements of the common box are in
the same order in both memories, with different gaps between them. So a move is a range of elements
of that box, and the runs of adjacent elements are listed only when they are copied:

    had  1 2 | 3 4    needed  1 | 2 3 | 4    in both  | 3 |    the rows of the box
         5 6 | 7 8            5 | 6 7 | 8             | 7 |    are the runs
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.nn.place import Box, Range
from nnmpi.parallel.arrangement.exchanges import Traffic

# ---- boxes of tensors


class Runs(NamedTuple):
    """Runs of adjacent elements to copy: where each starts in the sender's and in the receiver's
    part, and its length; sorted by the first. As arrays, since there may be many short ones."""

    source: np.ndarray
    target: np.ndarray
    length: np.ndarray

    def cut(self, lo: int, hi: int) -> "Runs":
        """Returns the runs for elements lo..hi-1, the ends shortened."""
        ends = np.cumsum(self.length)
        first, stop = np.searchsorted(ends, lo, "right"), np.searchsorted(ends, hi) + 1
        runs = Runs(*(a[first:stop].copy() for a in self))
        runs.shorten(lo - int(ends[first] - self.length[first]), int(ends[stop - 1]) - hi)
        return runs

    def shorten(self, first: int, last: int) -> None:
        """Removes `first` elements of the first run and `last` of the last run, in place."""
        for array, less in zip(self, (-first, -first, first), strict=True):
            array[0] -= less
        self.length[-1] -= last


def common(a: Box, b: Box) -> Box:
    """The intersection of two boxes; a side may be empty, and then its start equals its stop."""
    sides = zip(a, b, strict=True)
    return tuple((lo := max(i, k), max(lo, min(j, m))) for (i, j), (k, m) in sides)


def overlap(elements: Range, box: Box, axes: Sequence[int]) -> Range:
    """Returns those elements of `box` that are also in the range `elements`, whose own box contains
    it, as a range of `box`. `axes` are in memory order."""
    lo, hi = (count_before(n, elements.box, box, axes) for n in (elements.lo, elements.hi))
    return Range(elements.tensor, box, lo, hi)


def count_before(n: int, part: Box, box: Box, axes: Sequence[int]) -> int:
    """Returns how many of the first n elements of `part`, in memory order, lie in `box`, which is
    contained in `part`. `axes` has the axes of the tensor in memory order.

    An element comes before element n if its coordinate along some axis is smaller, and those along
    all earlier axes are equal; so one loop over the axes counts them.
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
        if not a <= digit < b:  # outside of the box: smaller digits cannot add to the count
            break
    return count


def runs_of(elements: Range, source: Box, target: Box, axes: Sequence[int]) -> Runs:
    """Returns the runs of adjacent elements by which `elements`, a range of a box, are copied from
    the part `source` to the part `target`; both contain the box. `axes` are in memory order.

    A run covers the innermost axes along which the box is as long as both parts, so that there are
    no gaps, and the next axis outwards. The first and the last run are cut to `elements`.
    """
    box, outer, length = elements.box, list(axes), 1
    while outer:
        k = outer.pop()
        length *= box[k][1] - box[k][0]
        if not box[k] == source[k] == target[k]:  # a longer run would have a gap in one of them
            break
    rows = np.arange(elements.lo // length, -(-elements.hi // length))
    starts, targets = (_starts(rows, box, part, outer, axes) for part in (source, target))
    runs = Runs(starts, targets, np.full(len(rows), length))
    runs.shorten(elements.lo % length, -elements.hi % length)
    return runs


def _starts(
    rows: np.ndarray, box: Box, part: Box, outer: Sequence[int], axes: Sequence[int]
) -> np.ndarray:
    """Returns the offsets in `part` at which rows of a box start, along the axes `outer`."""
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
"""The source of a range: a rank (its number), or a file (its name) that each rank reads itself."""

TOGETHER = 1 << 25
"""Bytes of the tensors that are moved together; a larger tensor is moved alone."""

MESSAGE = 1 << 22
UNDER_WAY = 1 << 27
"""The most bytes that a rank may be sending, or receiving, at a time."""


class MovedTensor(NamedTuple):
    """A whole tensor of which ranks have parts that are copied to other ranks.

    path          in the model's state dict, or the name of a state array
    shape         of the whole tensor
    axes          the order of the axes in memory
    dtype         in messages
    may_differ    True if the copies of a part on several ranks may have different values, as those
                  of buffers may; then all ranks get the copy of the first rank that has it
    """

    path: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: np.dtype[Any]
    may_differ: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorMove(NamedTuple):
    """The elements of one tensor that are copied from a holder to a rank.

    holder, have   the rank or file, and the range of elements that it has
    rank, need     the receiving rank, and the range of elements that it needs
    ranges         the elements to copy, as ranges of boxes that lie in the parts of both"""

    holder: Holder
    have: Range
    rank: int
    need: Range
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """The number of elements that are copied."""
        return sum(elements.size for elements in self.ranges)

    def runs(self, axes: Sequence[int]) -> Runs:
        """Returns the runs of adjacent elements to copy from the holder's part to the receiver's,
        in the order of the holder's memory, given the axes in this order."""
        of_boxes = [runs_of(r, self.have.box, self.need.box, axes) for r in self.ranges]
        if len(of_boxes) == 1:
            return of_boxes[0]
        joined = [np.concatenate(arrays) for arrays in zip(*of_boxes, strict=True)]
        order = np.argsort(joined[0])
        return Runs(*(a[order] for a in joined))


def longest_message(ranks: int) -> int:
    """Returns the most bytes of a message if each rank sends one to each other at a time."""
    return max(min(MESSAGE, UNDER_WAY // ranks), 1 << 16)


class MovePiece(NamedTuple):
    """Elements lo..hi-1 of a TensorMove, which are sent as part of a message.

    Elements are counted through all runs of the move, one after the other.
    """

    move: TensorMove
    dtype: np.dtype[Any]
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        """The bytes of this piece in a message."""
        return (self.hi - self.lo) * self.dtype.itemsize


class MovedBytes(NamedTuple):
    """Bytes that a rank copies (`kept`), reads, sends and receives in a MovePlan."""

    kept: int
    read: int
    sent: Traffic
    received: Traffic

    @property
    def needed(self) -> int:
        """The bytes of everything that this rank needs, from wherever they come."""
        return self.kept + self.read + self.received.bytes


class MovePlan(NamedTuple):
    """All copies of tensor elements between ranks, equal on all ranks and in the order of the
    tensors. `needs` has (rank, range) for each range of elements that a rank needs."""

    tensors: Mapping[str, MovedTensor]
    needs: tuple[tuple[int, Range], ...]
    moves: tuple[TensorMove, ...]

    def together(self) -> "Iterator[MovePlan]":
        """Splits the plan into plans that need little memory each: TOGETHER bytes or one tensor."""
        group_of, group, room = dict[str, int](), 0, 0  # group_of: of each tensor
        for path in dict.fromkeys(need.tensor for _, need in self.needs):
            room -= self.tensors[path].nbytes
            if room < 0:
                group, room = group + 1, TOGETHER - self.tensors[path].nbytes
            group_of[path] = group
        needs = groupby(self.needs, lambda row: group_of[row[1].tensor])
        moves = {k: (*g,) for k, g in groupby(self.moves, lambda move: group_of[move.need.tensor])}
        for k, rows in needs:
            yield MovePlan(self.tensors, (*rows,), moves.get(k, ()))

    def between(self) -> dict[tuple[Holder, int], list[TensorMove]]:
        """Returns the copies between each (holder, receiving rank)."""
        by_ends = defaultdict[tuple[Holder, int], list[TensorMove]](list)
        for move in self.moves:
            by_ends[move.holder, move.rank].append(move)
        return by_ends

    def messages(self, moves: Iterable[TensorMove], max_bytes: int) -> Iterator[list[MovePiece]]:
        """Packs moves into messages of at most `max_bytes`, as lists of pieces."""
        message, room = list[MovePiece](), max_bytes
        for move in moves:
            dtype, start, size = self.tensors[move.need.tensor].dtype, 0, move.size
            while start < size:
                stop = min(size, start + room // dtype.itemsize)
                if stop == start:  # an element is never cut: the message ends some bytes early
                    yield message
                    message, room = [], max_bytes
                    continue
                message.append(MovePiece(move, dtype, start, stop))
                start, room = stop, room - message[-1].nbytes
        if message:
            yield message

    def moved(self, ranks: int) -> list[MovedBytes]:
        """Returns the bytes that each rank copies, reads, sends and receives."""
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
