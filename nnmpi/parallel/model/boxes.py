"""Boxes of tensors: which numbers two ranges of a tensor have in common, and where in each.

A part is a box of the whole tensor. The numbers of a box that is in two parts follow each other in
both in one order, that of memory, if not without gaps. So what a range of the one part has for a
range of the other is a range of the box, and its numbers are listed only when they are copied:

    had  1 2 | 3 4    needed  1 | 2 3 | 4    in both  | 3 |    the rows of the box
         5 6 | 7 8            5 | 6 7 | 8             | 7 |    are the runs
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.nn.place import Part, Range


class Runs(NamedTuple):
    """Arrays of where runs of numbers start in the part that is had and in the part that is needed,
    and of their lengths; in the order of the first.

    A row of a matrix may be many runs, so they are arrays, not a `Range` each.
    """

    source: np.ndarray
    target: np.ndarray
    length: np.ndarray

    def cut(self, lo: int, hi: int) -> "Runs":
        """Those of numbers lo to hi - 1 of all of them together."""
        ends = np.cumsum(self.length)
        first, stop = np.searchsorted(ends, lo, "right"), np.searchsorted(ends, hi) + 1
        found = Runs(*(a[first:stop].copy() for a in self))
        found.shorten(lo - int(ends[first] - self.length[first]), int(ends[stop - 1]) - hi)
        return found

    def shorten(self, first: int, last: int) -> None:
        """Leaves so many numbers out of the first run and of the last."""
        for array, less in zip(self, (-first, -first, first), strict=True):
            array[0] -= less
        self.length[-1] -= last


def common(a: Part, b: Part) -> Part:
    """The box that is in both; a side of it may be empty, but is not turned around."""
    sides = zip(a, b, strict=True)
    return tuple((lo := max(i, k), max(lo, min(j, m))) for (i, j), (k, m) in sides)


def overlap(one: Range, box: Part, axes: Sequence[int]) -> Range:
    """The numbers of a range that are in a box within its box."""
    lo, hi = (before(n, one.box, box, axes) for n in (one.lo, one.hi))
    return Range(one.tensor, box, lo, hi)


def before(n: int, part: Part, box: Part, axes: Sequence[int]) -> int:
    """How many numbers of a box are among the first n of a part that it is in.

    n is written in digits, one an axis in the order of memory: those before it have the same first
    digits, and then a smaller one.
    """
    stride, inner = (math.prod(b - a for a, b in sides) for sides in (part, box))
    if n >= stride or not inner:
        return inner
    found = 0
    for k in axes:
        (start, stop), (a, b) = part[k], box[k]
        stride, inner = stride // (stop - start), inner // (b - a)
        digit, n = start + n // stride, n % stride
        found += (min(max(digit, a), b) - a) * inner
        if not a <= digit < b:
            break
    return found


def runs_of(one: Range, source: Part, target: Part, axes: Sequence[int]) -> Runs:
    """Where a range of a box is in two parts that it is in.

    A run is a row of the box along the last axes, all but the first of which are whole in both.
    """
    box, outer, length = one.box, list(axes), 1
    while outer:
        k = outer.pop()
        length *= box[k][1] - box[k][0]
        if not box[k] == source[k] == target[k]:
            break
    rows = np.arange(one.lo // length, -(-one.hi // length))
    there, here = (_starts(rows, box, part, outer, axes) for part in (source, target))
    found = Runs(there, here, np.full(len(rows), length))
    found.shorten(one.lo % length, -one.hi % length)
    return found


def _starts(
    rows: np.ndarray, box: Part, part: Part, outer: Sequence[int], axes: Sequence[int]
) -> np.ndarray:
    """Where rows of a box start in a part; `outer` are the axes along which they are numbered."""
    first, strides, stride = 0, dict[int, int](), 1
    for k in reversed(axes):
        strides[k] = stride
        first += (box[k][0] - part[k][0]) * stride
        stride *= part[k][1] - part[k][0]
    found = np.full(len(rows), first)
    for k in reversed(outer):
        rows, digits = np.divmod(rows, box[k][1] - box[k][0])
        found += digits * strides[k]
    return found
