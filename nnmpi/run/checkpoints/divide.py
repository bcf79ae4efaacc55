"""Who writes what: of numbers that several ranks have copies of, each writes a part.

    has      rank 0  [ w w w w | b b ]      writes   rank 0  [ w w w . | . . ]
             rank 1  [ w w w w | b b ]               rank 1  [ . . . w | b b ]
             rank 2  [ v v v ]                       rank 2  [ v v v ]

Every rank derives the same parts from what all have. What is divided is the bytes of all that the
same ranks have, one tensor behind the other.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from nnmpi.nn.place import Part, Place
from nnmpi.parallel.model.snapshot import SavedRange

LEAST = 1 << 20
"""Bytes of a stretch that is cut: smaller ones stay whole, on one of the ranks."""


class RangeType(NamedTuple):
    """A `SavedRange` without its numbers: of these and of each sum, the name of the type."""

    place: Place
    axes: tuple[int, ...]
    lo: int
    hi: int
    steps: int
    values: str
    sums: Mapping[str, str]

    @classmethod
    def of(cls, one: SavedRange) -> Self:
        """What a range is, without its numbers."""
        sums = {name: row.dtype.name for name, row in one.sums.items()}
        return cls(*one[:4], one.steps, one.values.dtype.name, sums)

    @property
    def bytes(self) -> int:
        """The bytes of each number, with those of its sums."""
        return sum(np.dtype(name).itemsize for name in (self.values, *self.sums.values()))


def divided(owned: Sequence[Sequence[RangeType]], least: int = LEAST) -> list[list[RangeType]]:
    """What each rank writes of what the ranks have: each number once."""
    shared = defaultdict[tuple[int, ...], list[RangeType]](list)
    for one, ranks in _stretches(owned):
        shared[ranks].append(one)
    found: list[list[RangeType]] = [[] for _ in owned]
    for ranks, stretches in shared.items():
        total, at = sum((one.hi - one.lo) * one.bytes for one in stretches), 0
        ends = [total * k // len(ranks) for k in range(1, len(ranks))]
        for one in stretches:
            n = one.hi - one.lo
            cuts = [0, *(_cut(end - at, n, one.bytes, least) for end in ends), n]
            for rank, (a, b) in zip(ranks, pairwise(cuts), strict=True):
                if a < b:
                    found[rank].append(one._replace(lo=one.lo + a, hi=one.lo + b))
            at += n * one.bytes
    return found


def _cut(byte: int, n: int, size: int, least: int) -> int:
    """The number at this byte of n numbers of so many bytes; 0 or n where few are not cut."""
    if n * size < least:
        return n if 2 * byte > n * size else 0
    return min(max(byte // size, 0), n)


def _stretches(
    owned: Sequence[Sequence[RangeType]],
) -> Iterator[tuple[RangeType, tuple[int, ...]]]:
    """Stretches of each part of a tensor, each with the ranks that have all of it."""
    found = defaultdict[tuple[str, Part], list[tuple[int, RangeType]]](list)
    for rank, ranges in enumerate(owned):
        for one in ranges:
            found[one.place.path, one.place.part].append((rank, one))
    for there in found.values():
        ends = sorted({end for _, one in there for end in (one.lo, one.hi)})
        for lo, hi in pairwise(ends):
            here = [(rank, one) for rank, one in there if one.lo <= lo and hi <= one.hi]
            if here:
                ranks = tuple(dict.fromkeys(rank for rank, _ in here))
                yield here[0][1]._replace(lo=lo, hi=hi), ranks
