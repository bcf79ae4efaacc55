"""GradientSlots: memory for the gradients of a bucket, until they are summed.

    first contribution    a slot is taken
    start                 the backward pass is done with the bucket: its reduce-scatter starts
    complete              this rank's part is added to `own`, and the slot is free again

That happens once for each micro-batch. Two slots are enough where buckets are done in their order:
one fills while the other is sent. Parts are added in the order in which sums were started, so that
the same layout gives the same bits.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.arrangement.slot_walk import SLOTS
from nnmpi.parallel.stores.local import Stretch, Sum
from nnmpi.parallel.zero.shards import Part, Shards
from nnmpi.parallel.zero.whole import GATHER


class InFlight(NamedTuple):
    """A sum that has been started."""

    bucket: int
    slot: Array
    work: Sum


class GradientSlots:
    """The sums over ranks and micro-batches of this rank's parts, packed, and the slots."""

    def __init__(self, store: FlatStore, shards: Shards, dp: Comm, algorithm: str) -> None:
        self._store, self._shards, self._dp, self._algorithm = store, shards, dp, algorithm
        self._own = np.zeros(shards.size, store.dtype)
        self.nbytes = self._own.nbytes
        self._longest = max(stop - start for start, stop, _ in shards.buckets)
        self._count = SLOTS
        self._free = [np.zeros(self._longest, store.dtype) for _ in range(self._count)]
        self._open: dict[int, Array] = {}
        self._in_flight = deque[InFlight]()
        self._has_sum = set[int]()
        self._views: dict[tuple[int, int], dict[int, Array]] = {}
        self._padding = [_padding(store, shards, b) for b in range(len(shards.buckets))]

    @property
    def slot_nbytes(self) -> int:
        """The memory of all slots."""
        return self._count * self._longest * self._own.itemsize

    def begin(self) -> None:
        """Starts a step: there are no sums yet."""
        assert not self._in_flight
        self._free.extend(self._open.values())
        self._open.clear()
        self._has_sum.clear()

    def view(self, i: int) -> Array:
        """The memory of the gradient of parameter i."""
        b = self._shards.bucket_of[i]
        slot = self._open.get(b)
        if slot is None:
            slot = self._take(b)
        return self._views[id(slot), b][i]

    def start(self, b: int) -> Sum:
        """The gradients of a bucket are final: starts to sum them."""
        slot = self._open.pop(b)
        start, stop, _ = self._shards.buckets[b]
        work = self._dp.start_reduce_scatter(slot[: stop - start], self._algorithm)
        self._in_flight.append(InFlight(b, slot, work))
        return work

    def poll(self) -> None:
        """Messages progress; what is complete is added."""
        while self._in_flight and self._in_flight[0].work.poll():
            self._add()

    def wait(self) -> None:
        """All sums that were started are complete and added."""
        while self._in_flight:
            self._wait_for_first()

    def part(self, part: Part) -> Array:
        """The sums of this rank."""
        return self._own[part.packed]

    def whole(self, i: int) -> Array:
        """The sum of parameter i; every rank of dp calls it."""
        store, b = self._store, self._shards.bucket_of[i]
        start, stop, _ = self._shards.buckets[b]
        part, array = self._shards.parts[b], np.zeros(stop - start, store.dtype)
        array[part.start - start : part.stop - start] = self._own[part.packed]
        self._dp.all_gather(array, GATHER)
        return store.view(array, store.parameters[i], store.spans[i][0] - start)

    def _take(self, b: int) -> Array:
        """A slot for bucket b, whose padding is zero."""
        while not self._free and self._in_flight and self._count >= SLOTS:
            self._wait_for_first()
        if not self._free:
            self._free.append(np.zeros(self._longest, self._store.dtype))
            self._count += 1
        slot = self._open[b] = self._free.pop()
        if (id(slot), b) not in self._views:
            self._views[id(slot), b] = self._views_of(slot, b)
        for lo, hi in self._padding[b]:
            slot[lo:hi] = 0
        return slot

    def _views_of(self, slot: Array, b: int) -> dict[int, Array]:
        store, origin = self._store, self._shards.buckets[b].start
        return {
            i: store.view(slot, store.parameters[i], store.spans[i][0] - origin)
            for i in self._shards.members[b]
        }

    def _wait_for_first(self) -> None:
        self._in_flight[0].work.wait()
        self._add()

    def _add(self) -> None:
        """Adds the part of the oldest sum, which is complete."""
        b, slot, _ = self._in_flight.popleft()
        part, origin = self._shards.parts[b], self._shards.buckets[b].start
        new, own = slot[part.start - origin : part.stop - origin], self._own[part.packed]
        if b in self._has_sum:
            own += new
        else:
            own[...] = new
            self._has_sum.add(b)
        self._free.append(slot)


def _padding(store: FlatStore, shards: Shards, b: int) -> list[Stretch]:
    """Where in a slot no parameter of bucket b is."""
    origin, found = shards.buckets[b].start, list[Stretch]()
    for i in shards.members[b]:
        start, end = store.spans[i]
        lo, hi = start + store.parameters[i].size - origin, end - origin
        if lo < hi:
            found.append((lo, hi))
    return found
