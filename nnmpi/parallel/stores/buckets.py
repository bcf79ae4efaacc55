"""Buckets: slices of a rank's flat buffer, each summed by one collective."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, Shard, shards_of
from nnmpi.parallel.wire import Wire

GATHER = "ring"
"""The algorithm that gathers buckets whose shards are on several ranks."""


class CommBucket(NamedTuple):
    """A gradient bucket: elements start..stop of the flat buffer, summed over `comm` at once."""

    start: int
    stop: int
    comm: Wire


class Buckets:
    """The buckets of a rank's flat buffer, and the shard of each that each rank owns (#).

    flat      [ bucket 0     | bucket 1        | bucket 2 ]
    rank 0    [ ##..         | ###...          | ##..     ]      shard r of each bucket is rank r's
    rank 1    [ ..##         | ...###          | ..##     ]
    packed    [ ## | ### | ## ]                                  on each rank

    all        the buckets in memory order, which is the order of a forward pass; one may be empty
    spans      (start, stop) of each parameter, padding included
    of         the index of the bucket that contains each parameter
    members    the indices of the parameters in each bucket
    """

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        buckets: Sequence[CommBucket],
        algorithm: str,
    ) -> None:
        self.spans, self.algorithm = spans, algorithm
        self.all = buckets
        stops, last = [bucket.stop for bucket in self.all], len(buckets) - 1
        # an empty parameter may begin where the last bucket ends
        self.of = [min(bisect_right(stops, start), last) for start, _ in spans]
        self.members: list[list[int]] = [[] for _ in buckets]
        for i, b in enumerate(self.of):
            self.members[b].append(i)

    def shards(self, over: Wire | None = None) -> list[Shard]:
        """Returns this rank's shards, which it updates: one of each bucket, which is divided evenly
        among the ranks of its `comm`, or of `over` if given."""
        chunks = ((start, (over or comm).chunk(stop - start)) for start, stop, comm in self.all)
        return shards_of((start + chunk.start, start + chunk.stop) for start, chunk in chunks)

    def views(self, memory: Array, b: int, parameters: Sequence[Parameter]) -> dict[int, Array]:
        """Returns views into `memory`, which begins with bucket b, by index of the parameter."""
        origin, spans = self.all[b].start, self.spans
        view = FlatStore.view
        return {i: view(memory, parameters[i], spans[i][0] - origin) for i in self.members[b]}

    def in_slots(
        self, slots: Mapping[int, int], parameters: Sequence[Parameter], dtype: Any, on: Backend
    ) -> tuple[list[Array], list[Array], int]:
        """Allocates slots; bucket b uses number slots[b]. Returns (the elements of each bucket, a
        view of each parameter, the bytes of all slots)."""
        lengths = defaultdict[int, list[int]](list)
        for b, (start, stop, _) in enumerate(self.all):
            lengths[slots[b]].append(stop - start)
        memory = {slot: on.xp.zeros(max(of_slot), dtype) for slot, of_slot in lengths.items()}
        rows = [memory[slots[b]][: stop - start] for b, (start, stop, _) in enumerate(self.all)]
        views = [self.views(row, b, parameters) for b, row in enumerate(rows)]
        of_parameters = [views[b][i] for i, b in enumerate(self.of)]
        return rows, of_parameters, sum(int(slot.nbytes) for slot in memory.values())

    def set_up(self, dtype: Any, on: Backend = CPU) -> None:
        """Runs one all-reduce for each bucket, so that its communicator chooses an algorithm and
        allocates memory now; raises NoRoomError if there is too little shared memory. Longer
        buckets come first, on all ranks, so no two ranks wait for each other."""
        for b in sorted(self.all, key=lambda b: (b.start - b.stop, b.comm.name)):
            if b.comm.size > 1 and self.algorithm not in REDUCE_SCATTERS:  # these take no memory
                b.comm.all_reduce(on.xp.zeros(b.stop - b.start, dtype), self.algorithm)


NO_BUCKETS = Buckets((), (), "")
"""The buckets of a store whose gradients are not summed in buckets."""
