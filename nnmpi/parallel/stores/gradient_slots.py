"""The gradients of ZeRO: WholeGradients for ZeRO 1, GradientSlots for ZeRO 2 and 3.

A slot has the gradients of one bucket until they are summed:

    first contribution    a slot is taken
    start                 the backward pass is done with the bucket: its reduce-scatter starts
    complete              this rank's shard is added to `flat`, and the slot is free again

This happens once for each micro-batch. Two slots are enough where buckets come in their order: one
fills while the other is sent. Shards are added in the order in which their sums were started, so
the same layout always gives the same bits.
"""

from collections import deque
from typing import NamedTuple

from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import types_of
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.nn.store import Shard
from nnmpi.parallel.arrangement.flat_buffer import FlatSlice
from nnmpi.parallel.arrangement.program import SLOTS
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import Transfer, wire_of


class WholeGradients:
    """Whole gradients of this rank in `flat`; the sums replace them, at least in this rank's
    shards."""

    slot_bytes = 0

    def __init__(self, store: LocalStore) -> None:
        self._buckets, self._wire = store.buckets, wire_of(store.dp, store.on)
        self.flat = store.on.xp.zeros(store.length, store.dtype)
        self._memories = store.views(self.flat)

    def begin(self) -> None:
        """Starts a step; nothing has to be cleared."""

    def grad_memory(self, i: int) -> Array:
        """The memory of this rank's gradient of parameter i."""
        return self._memories[i]

    def shard_view(self, shard: Shard) -> Array:
        """The memory of the summed gradients of a shard."""
        return self.flat[shard.start : shard.stop]

    def start(self, b: int) -> Transfer | None:
        """Starts the sum of a bucket: a reduce-scatter over dp if the algorithm has one, else an
        all-reduce; None on one rank."""
        (start, stop, comm), algorithm = self._buckets.all[b], self._buckets.algorithm
        if comm.size == 1:
            return None
        if comm is self._wire and algorithm in REDUCE_SCATTERS:
            return comm.start_reduce_scatter(self.flat[start:stop], algorithm)
        return comm.start(self.flat[start:stop], algorithm)

    def poll(self) -> None:
        """Does nothing: whoever started a sum polls it."""

    def wait(self) -> None:
        """Does nothing: whoever started a sum waits for it."""

    def whole(self, i: int) -> Array:
        """The summed gradient of parameter i; every rank that sums it calls this, also ranks of
        other stages."""
        start, stop, comm = self._buckets.all[self._buckets.of[i]]
        # also after an all-reduce: a rank has clipped only its own shards
        comm.all_gather(self.flat[start:stop], GATHER)
        return self._memories[i]


class ScatteredSum(NamedTuple):
    """A reduce-scatter of a bucket that was started."""

    bucket: int
    slot: Array
    work: Transfer


class GradientSlots:
    """Summed gradients of this rank's shards in `flat`, packed, over all ranks and micro-batches so
    far."""

    def __init__(self, store: LocalStore) -> None:
        self._parameters, self._buckets = store.parameters, store.buckets
        self._wire, self._on, self._dtype = wire_of(store.dp, store.on), store.on, store.dtype
        self.flat = store.on.xp.zeros(store.shards[-1].packed.stop, types_of(store.dtype).sums)
        self._shards = [self.flat[shard.packed] for shard in store.shards]
        lengths = [stop - start for start, stop, _ in self._buckets.all]
        self._chunks = [self._wire.chunk(n) for n in lengths]  # of each bucket
        self._longest, self._of = max(lengths), self._buckets.of
        self.slot_bytes, self._free = 0, list[Array]()
        self._views: dict[int, list[dict[int, Array]]] = {}  # of each slot, for each bucket
        for _ in range(SLOTS):
            self._add_slot()
        self._open: dict[int, Array] = {}
        self._in_flight = deque[ScatteredSum]()
        self._has_sum = set[int]()
        self._padding = [self._padding_of(b) for b in range(len(lengths))]

    def begin(self) -> None:
        """Starts a step: discards the sums of the last step, and frees all slots."""
        assert not self._in_flight
        self._free.extend(self._open.values())
        self._open.clear()
        self._has_sum.clear()

    def grad_memory(self, i: int) -> Array:
        """The memory of this rank's gradient of parameter i, in the slot of its bucket; takes a
        free slot if the bucket has none yet."""
        b = self._of[i]
        slot = self._open.get(b)
        if slot is None:
            slot = self._take_slot(b)
        return self._views[id(slot)][b][i]

    def shard_view(self, shard: Shard) -> Array:
        """The memory of the summed gradients of a shard."""
        return self.flat[shard.packed]

    def start(self, b: int) -> Transfer:
        """Starts the reduce-scatter of a bucket whose gradients are final."""
        slot = self._open.pop(b)
        start, stop, _ = self._buckets.all[b]
        work = self._wire.start_reduce_scatter(slot[: stop - start], self._buckets.algorithm)
        self._in_flight.append(ScatteredSum(b, slot, work))
        return work

    def poll(self) -> None:
        """Adds the sums that are complete to `flat`."""
        # the oldest first, though a later one may be complete: the order decides the bits
        while self._in_flight and self._in_flight[0].work.poll():
            self._add()

    def wait(self) -> None:
        """Waits for all sums under way and adds them."""
        while self._in_flight:
            self._wait_for_first()

    def whole(self, i: int) -> Array:
        """The summed gradient of parameter i, gathered; every rank of dp calls it."""
        b = self._of[i]
        start, stop, _ = self._buckets.all[b]
        array = self._on.xp.zeros(stop - start, self.flat.dtype)
        array[self._chunks[b]] = self._shards[b]
        self._wire.all_gather(array, GATHER)
        return self._buckets.views(array, b, self._parameters)[i]

    def _take_slot(self, b: int) -> Array:
        """Takes a free slot for bucket b and writes zeros to its padding; waits for a sum if no
        slot is free."""
        while not self._free and self._in_flight:
            self._wait_for_first()
        if not self._free:
            self._add_slot()
        slot = self._open[b] = self._free.pop()
        for lo, hi in self._padding[b]:
            slot[lo:hi] = 0
        return slot

    def _add_slot(self) -> None:
        slot, buckets = self._on.xp.zeros(self._longest, self._dtype), self._buckets
        views = (buckets.views(slot, b, self._parameters) for b in range(len(buckets.all)))
        self._views[id(slot)] = [*views]
        self._free.append(slot)
        self.slot_bytes += int(slot.nbytes)

    def _wait_for_first(self) -> None:
        self._in_flight[0].work.wait()
        self._add()

    def _add(self) -> None:
        """Adds this rank's shard of the oldest sum, which is complete, and frees its slot."""
        b, slot, _ = self._in_flight.popleft()
        new, shard = slot[self._chunks[b]], self._shards[b]
        if b in self._has_sum:
            shard += new
        else:  # not added to zeros: a copy is cheaper than clearing `flat` in each step
            shard[...] = new
            self._has_sum.add(b)
        self._free.append(slot)

    def _padding_of(self, b: int) -> list[FlatSlice]:
        """The slices of a slot that belong to no parameter of bucket b."""
        origin, spans = self._buckets.all[b].start, self._buckets.spans
        sizes = ((i, self._parameters[i].size) for i in self._buckets.members[b])
        gaps = ((spans[i][0] + size - origin, spans[i][1] - origin) for i, size in sizes)
        return [(lo, hi) for lo, hi in gaps if lo < hi]
