"""Who writes what: of numbers that several ranks have copies of, each writes a part.

    has      rank 0  [ w w w w | b b ]      writes   rank 0  [ w w w . | . . ]
             rank 1  [ w w w w | b b ]               rank 1  [ . . . w | b b ]
             rank 2  [ v v v ]                       rank 2  [ v v v ]

Every rank derives the same parts from what all have. What is divided is the bytes of all that the
same ranks have, one tensor behind the other.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from nnmpi.nn.place import Part
from nnmpi.parallel.model.snapshot import RangeOf, bytes_of

LEAST = 1 << 20
"""Bytes of a stretch that is cut: smaller ones stay whole, on one of the ranks."""


def divided(
    owned: Sequence[Sequence[RangeOf[str]]], least: int = LEAST
) -> list[list[RangeOf[str]]]:
    """What each rank writes of what the ranks have: each number once, in the order of tensors.

    What is not trained is written whole, and if it is small by the first rank that has it: copies
    of buffers may differ where ranks go at their own pace.
    """
    shared = defaultdict[tuple[int, ...], list[tuple[int, RangeOf[str]]]](list)
    found: list[list[tuple[int, RangeOf[str]]]] = [[] for _ in owned]
    for number, (one, ranks) in enumerate(_stretches(owned)):
        is_first = not one.is_trained and bytes_of(one) < least
        (found[ranks[0]] if is_first else shared[ranks]).append((number, one))
    for ranks, stretches in shared.items():
        total, at = sum(bytes_of(one) for _, one in stretches), 0
        ends = [total * k // len(ranks) for k in range(1, len(ranks))]
        for number, one in stretches:
            cuts = [0, *(_cut(end - at, one, least) for end in ends), one.hi - one.lo]
            for rank, (a, b) in zip(ranks, pairwise(cuts), strict=True):
                if a < b:
                    found[rank].append((number, one._replace(lo=one.lo + a, hi=one.lo + b)))
            at += bytes_of(one)
    return [[one for _, one in sorted(there, key=lambda row: row[0])] for there in found]


def _cut(byte: int, one: RangeOf[str], least: int) -> int:
    """How many of the numbers of a range lie before a byte; all or none of what is not cut."""
    n, size = one.hi - one.lo, bytes_of(one)
    if size < least or not one.is_trained:
        return n if 2 * byte > size else 0
    return min(max(byte * n // size, 0), n)


def _stretches(
    owned: Sequence[Sequence[RangeOf[str]]],
) -> Iterator[tuple[RangeOf[str], tuple[int, ...]]]:
    """Stretches of each part of a tensor, each with the ranks that have all of it."""
    found = defaultdict[tuple[str, Part], list[tuple[int, RangeOf[str]]]](list)
    for rank, ranges in enumerate(owned):
        for one in ranges:
            found[one.path, one.part].append((rank, one))
    for there in found.values():
        ends = sorted({end for _, one in there for end in (one.lo, one.hi)})
        for lo, hi in pairwise(ends):
            here = [(rank, one) for rank, one in there if one.lo <= lo and hi <= one.hi]
            if here:
                ranks = tuple(dict.fromkeys(rank for rank, _ in here))
                yield here[0][1]._replace(lo=lo, hi=hi), ranks
