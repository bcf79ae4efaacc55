"""The gradients of ZeRO: WholeGradients of stage 1, GradientSlots of stages 2 and 3.

A slot has the gradients of a bucket until they are summed:

    first contribution    a slot is taken
    start                 the backward pass is done with the bucket: its reduce-scatter starts
    complete              this rank's shard is added to `flat`, and the slot is free again

That happens once for each micro-batch. Two slots are enough where buckets are done in their order:
one fills while the other is sent. Shards are added in the order in which sums were started, so that
the same layout gives the same bits.
"""

from collections import deque
from typing import NamedTuple

from nnmpi.backend import Array
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.dtypes import wide
from nnmpi.nn.store import Shard
from nnmpi.parallel.arrangement.flat_buffer import Stretch
from nnmpi.parallel.arrangement.program import SLOTS
from nnmpi.parallel.stores.sharded_buffers import GATHER, ShardedBuffers
from nnmpi.parallel.wire import Transfer


class WholeGradients:
    """`flat` has this rank's gradients; sums replace them, at least in its shards."""

    slot_bytes = 0

    def __init__(self, buffers: ShardedBuffers) -> None:
        self._buckets, self._wire = buffers.buckets, buffers.sums
        self.flat = buffers.on.xp.zeros(buffers.length, buffers.dtype)
        self._slots = buffers.views(self.flat)

    def begin(self) -> None:
        """Starts a step."""

    def slot(self, i: int) -> Array:
        """The memory of this rank's gradient of parameter i."""
        return self._slots[i]

    def own(self, shard: Shard) -> Array:
        """The memory of the sums of a shard."""
        return self.flat[shard.start : shard.stop]

    def start(self, b: int) -> Transfer | None:
        """Starts the sum of a bucket; each rank of dp gets its shard only, if there are halves."""
        (start, stop, comm), algorithm = self._buckets[b], self._buckets.algorithm
        if comm.size == 1:
            return None
        if comm is self._wire and algorithm in REDUCE_SCATTERS:
            return comm.start_reduce_scatter(self.flat[start:stop], algorithm)
        return comm.start(self.flat[start:stop], algorithm)

    def poll(self) -> None:
        """Sums progress with whoever started them."""

    def wait(self) -> None:
        """Who started sums waits for them."""

    def whole(self, i: int) -> Array:
        """The sum of parameter i; every rank of dp calls it."""
        start, stop, comm = self._buckets[self._buckets.of[i]]
        if comm is self._wire:
            comm.all_gather(self.flat[start:stop], GATHER)
        return self._slots[i]


class ScatteredSum(NamedTuple):
    """A reduce-scatter of a bucket that has been started."""

    bucket: int
    slot: Array
    work: Transfer


class GradientSlots:
    """`flat` has the sums over ranks and micro-batches of this rank's shards, packed."""

    def __init__(self, buffers: ShardedBuffers) -> None:
        self._buffers, xp = buffers, buffers.on.xp
        self.flat = xp.zeros(buffers.own_length, wide(buffers.dtype))
        self._longest = max(bucket.stop - bucket.start for bucket in buffers.buckets)
        self._of, self._count, self._free = buffers.buckets.of, 0, list[Array]()
        for _ in range(SLOTS):
            self._add_slot()
        self._open: dict[int, Array] = {}
        self._in_flight = deque[ScatteredSum]()
        self._has_sum = set[int]()
        self._views: dict[tuple[int, int], dict[int, Array]] = {}
        self._padding = [self._padding_of(b) for b in range(len(buffers.buckets))]

    @property
    def slot_bytes(self) -> int:
        """The memory of all slots."""
        return int(self._count * self._longest * self._buffers.dtype.itemsize)

    def begin(self) -> None:
        """Starts a step: there are no sums."""
        assert not self._in_flight
        self._free.extend(self._open.values())
        self._open.clear()
        self._has_sum.clear()

    def slot(self, i: int) -> Array:
        """The memory of this rank's gradient of parameter i, in a slot of its bucket."""
        b = self._of[i]
        slot = self._open.get(b)
        if slot is None:
            slot = self._take_slot(b)
        return self._views[id(slot), b][i]

    def own(self, shard: Shard) -> Array:
        """The memory of the sums of a shard."""
        return self.flat[shard.packed]

    def start(self, b: int) -> Transfer:
        """The gradients of a bucket are final: starts to sum them."""
        slot, buckets = self._open.pop(b), self._buffers.buckets
        start, stop, _ = buckets[b]
        work = self._buffers.sums.start_reduce_scatter(slot[: stop - start], buckets.algorithm)
        self._in_flight.append(ScatteredSum(b, slot, work))
        return work

    def poll(self) -> None:
        """Sums that are complete are added."""
        while self._in_flight and self._in_flight[0].work.poll():
            self._add()

    def wait(self) -> None:
        """No sum is under way."""
        while self._in_flight:
            self._wait_for_first()

    def whole(self, i: int) -> Array:
        """The sum of parameter i; every rank of dp calls it."""
        buffers, b = self._buffers, self._of[i]
        start, stop, _ = buffers.buckets[b]
        array = buffers.on.xp.zeros(stop - start, self.flat.dtype)
        array[buffers.in_bucket[b]] = self.own(buffers.shards[b])
        buffers.sums.all_gather(array, GATHER)
        return buffers.view(array, i, start)

    def _take_slot(self, b: int) -> Array:
        """A slot for bucket b, whose padding is zero."""
        while not self._free and self._in_flight and self._count >= SLOTS:
            self._wait_for_first()
        if not self._free:
            self._add_slot()
        slot = self._open[b] = self._free.pop()
        if (id(slot), b) not in self._views:
            self._views[id(slot), b] = self._buffers.bucket_views(slot, b)
        for lo, hi in self._padding[b]:
            slot[lo:hi] = 0
        return slot

    def _add_slot(self) -> None:
        self._free.append(self._buffers.on.xp.zeros(self._longest, self._buffers.dtype))
        self._count += 1

    def _wait_for_first(self) -> None:
        self._in_flight[0].work.wait()
        self._add()

    def _add(self) -> None:
        """Adds the shard of the oldest sum, which is complete."""
        b, slot, _ = self._in_flight.popleft()
        buffers = self._buffers
        new, own = slot[buffers.in_bucket[b]], self.flat[buffers.shards[b].packed]
        if b in self._has_sum:
            own += new
        else:
            own[...] = new
            self._has_sum.add(b)
        self._free.append(slot)

    def _padding_of(self, b: int) -> list[Stretch]:
        """Where in a slot no parameter of bucket b is."""
        buffers, found = self._buffers, list[Stretch]()
        origin = buffers.buckets[b].start
        for i in buffers.buckets.members[b]:
            start, end = buffers.spans[i]
            lo, hi = start + buffers.parameters[i].size - origin, end - origin
            if lo < hi:
                found.append((lo, hi))
        return found
