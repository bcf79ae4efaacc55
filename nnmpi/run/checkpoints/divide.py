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

from nnmpi.dtypes import named
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
        sums = {name: row[0:0].dtype.name for name, row in one.sums.items()}
        return cls(*one[:4], one.steps, one.values[0:0].dtype.name, sums)

    @property
    def size(self) -> int:
        """The bytes of the numbers, with those of their sums."""
        types = (self.values, *self.sums.values())
        return (self.hi - self.lo) * sum(int(named(name).itemsize) for name in types)

    @property
    def is_trained(self) -> bool:
        """Whether an optimizer updates it."""
        return self.steps > 0 or bool(self.sums)


def divided(owned: Sequence[Sequence[RangeType]], least: int = LEAST) -> list[list[RangeType]]:
    """What each rank writes of what the ranks have: each number once, in the order of tensors.

    What is not trained is written whole, and if it is small by the first rank that has it: copies
    of buffers may differ where ranks go at their own pace.
    """
    shared = defaultdict[tuple[int, ...], list[tuple[int, RangeType]]](list)
    found: list[list[tuple[int, RangeType]]] = [[] for _ in owned]
    for number, (one, ranks) in enumerate(_stretches(owned)):
        is_first = not one.is_trained and one.size < least
        (found[ranks[0]] if is_first else shared[ranks]).append((number, one))
    for ranks, stretches in shared.items():
        total, at = sum(one.size for _, one in stretches), 0
        ends = [total * k // len(ranks) for k in range(1, len(ranks))]
        for number, one in stretches:
            cuts = [0, *(_cut(end - at, one, least) for end in ends), one.hi - one.lo]
            for rank, (a, b) in zip(ranks, pairwise(cuts), strict=True):
                if a < b:
                    found[rank].append((number, one._replace(lo=one.lo + a, hi=one.lo + b)))
            at += one.size
    return [[one for _, one in sorted(there, key=lambda row: row[0])] for there in found]


def _cut(byte: int, one: RangeType, least: int) -> int:
    """How many of the numbers of a range lie before a byte; all or none of what is not cut."""
    if one.size < least or not one.is_trained:
        return one.hi - one.lo if 2 * byte > one.size else 0
    return min(max(byte * (one.hi - one.lo) // one.size, 0), one.hi - one.lo)


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
