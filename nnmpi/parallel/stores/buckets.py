"""Buckets: stretches of gradients that are summed in one operation, and the parameters in each.

flat      [ bucket 0     | bucket 1        | bucket 2 ]
rank 0    [ ##..         | ###...          | ##..     ]      shard r of each bucket is rank r's
rank 1    [ ..##         | ...###          | ..##     ]
packed    [ ## | ### | ## ]                                  on each rank
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from nnmpi.backend import CPU
from nnmpi.comm import Comm
from nnmpi.nn.store import Shard, shards_of


class CommBucket(NamedTuple):
    """A stretch of gradients that is summed in one operation, over the ranks of `comm`."""

    start: int
    stop: int
    comm: Comm


class Buckets:
    """All buckets in the order of memory, and so of a forward pass; one may be empty.

    of        the bucket of each parameter
    members   the parameters of each bucket
    users     the stages of this rank that use each parameter
    stages    the stages of this rank that use each bucket
    """

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        buckets: Sequence[CommBucket],
        users: Sequence[frozenset[int]],
    ) -> None:
        self.users, self._all = users, sorted(buckets, key=lambda bucket: bucket[:2])
        numbers = range(len(buckets))
        last = len(buckets) - 1  # an empty parameter may begin where it ends
        self.of = [
            next((b for b in numbers if start < self._all[b].stop), last) for start, _ in spans
        ]
        self.members = [[i for i, own in enumerate(self.of) if own == b] for b in numbers]
        self.stages = [frozenset[int]().union(*(users[i] for i in own)) for own in self.members]

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, b: int) -> CommBucket:
        return self._all[b]

    def __iter__(self) -> Iterator[CommBucket]:
        return iter(self._all)

    def shards(self, over: Comm | None = None) -> list[Shard]:
        """This rank's shard of each bucket, among the ranks of its Comm, or of another one."""
        own = ((start, (over or comm).chunk(stop - start)) for start, stop, comm in self._all)
        return shards_of((start + chunk.start, start + chunk.stop) for start, chunk in own)


def set_up(buckets: Iterable[CommBucket], dtype: Any, algorithm: str) -> None:
    """Comm chooses its ways and takes its memory now, or finds no room.

    The longest first, in an order that all ranks of all comms share.
    """
    for b in sorted(buckets, key=lambda b: (b.start - b.stop, b.comm.name)):
        b.comm.all_reduce(CPU.xp.zeros(b.stop - b.start, dtype), algorithm)
