"""Shards: of each bucket of a flat buffer, the part that this rank updates.

flat      [ bucket 0     | bucket 1        | bucket 2 ]
rank 0    [ ##..         | ###...          | ##..     ]      part r of each bucket is rank r's
rank 1    [ ..##         | ...###          | ..##     ]
own parts [ ## | ### | ## ]                                  one behind the other, on each rank
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nnmpi.parallel.stores.local import Bucket, Stretch


class Part(NamedTuple):
    """Elements start to stop - 1 of a flat buffer; at `at` where own parts follow each other."""

    start: int
    stop: int
    at: int

    @property
    def packed(self) -> slice:
        """Where it is in a buffer of own parts."""
        return slice(self.at, self.at + self.stop - self.start)


class Shards:
    """`buckets` are in the order of memory, and so of a forward pass.

    `users` are the stages of this rank that use each parameter.
    """

    def __init__(
        self,
        spans: Sequence[Stretch],
        buckets: Sequence[Bucket],
        users: Sequence[frozenset[int]],
    ) -> None:
        self.users = users
        self.buckets = sorted(buckets, key=lambda bucket: bucket[:2])  # one may be empty
        self.parts = [*_parts(self.buckets)]
        self.size = sum(part.stop - part.start for part in self.parts)
        self.bucket_of = [
            next(b for b, bucket in enumerate(self.buckets) if start < bucket.stop)
            for start, _ in spans
        ]
        self.members = [
            [i for i, own in enumerate(self.bucket_of) if own == b]
            for b in range(len(self.buckets))
        ]
        self.stages = [
            frozenset[int]().union(*(users[i] for i in members)) for members in self.members
        ]

    @property
    def length(self) -> int:
        """The length of a flat buffer."""
        return self.buckets[-1].stop

    def within(self, start: int, end: int) -> Iterator[Part]:
        """What this rank updates of elements start to end - 1."""
        for a, b, at in self.parts:
            lo, hi = max(a, start), min(b, end)
            if lo < hi:
                yield Part(lo, hi, at + lo - a)


def _parts(buckets: Sequence[Bucket]) -> Iterator[Part]:
    at = 0
    for start, stop, comm in buckets:
        own = comm.chunk(stop - start)
        yield Part(start + own.start, start + own.stop, at)
        at += own.stop - own.start
