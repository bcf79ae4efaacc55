"""Stores of ZeRO 2 and 3, whose gradients, and in stage 3 values too, are in slots for a while.

Stage 2: a slot has the gradients of a bucket until they are summed.

    first contribution    a slot is taken
    start                 the backward pass is done with the bucket: its reduce-scatter starts
    complete              this rank's shard is added to `flat_grad`, and the slot is free again

That happens once for each micro-batch. Two slots are enough where buckets are done in their order:
one fills while the other is sent. Shards are added in the order in which sums were started, so that
the same layout gives the same bits.

Stage 3: whole values of two buckets only, gathered when they are used. Bucket b is always in slot
b mod 2 (see `SlotWalk`), so its memory is always at the same place. So an array that a vjp keeps is
right whenever the bucket is there, and the tape sees to that: it calls `refresh` before the vjps of
a node.
"""

from collections import deque
from typing import NamedTuple

from nnmpi.backend import Array
from nnmpi.dtypes import wide
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.store import Shard, within
from nnmpi.parallel.arrangement.program import BACKWARD, FORWARD, NONE, SLOTS, SlotWalk
from nnmpi.parallel.stores import Stretch
from nnmpi.parallel.wire import Transfer
from nnmpi.parallel.zero.store import GATHER, ShardedStore, wait_for_gather

ORDERS = 1_000_003  # checksums of orders; the sum of their squares over many ranks is exact


class ScatteredSum(NamedTuple):
    """A reduce-scatter of a bucket that has been started."""

    bucket: int
    slot: Array
    work: Transfer


class ShardedGradientStore(ShardedStore):
    """`flat_grad` has the sums over ranks and micro-batches of this rank's shards, packed."""

    def allocate_gradients(self) -> None:
        self.flat_grad = self.on.xp.zeros(self.shards[-1].packed.stop, wide(self.dtype))
        self._longest = max(bucket.stop - bucket.start for bucket in self.buckets)
        self._count, self.slots = SLOTS, []
        self._free = [self.on.xp.zeros(self._longest, self.dtype) for _ in range(SLOTS)]
        self._open: dict[int, Array] = {}
        self._in_flight = deque[ScatteredSum]()
        self._has_sum = set[int]()
        self._views: dict[tuple[int, int], dict[int, Array]] = {}
        self._padding = [self._padding_of(b) for b in range(len(self.buckets))]

    def shard_gradient(self, shard: Shard) -> Array:
        return self.flat_grad[shard.packed]

    def begin(self) -> None:
        assert not self._in_flight
        super().begin()
        self._free.extend(self._open.values())
        self._open.clear()
        self._has_sum.clear()

    def own_slot(self, i: int) -> Array:
        b = self.buckets.of[i]
        slot = self._open.get(b)
        if slot is None:
            slot = self._take_slot(b)
        return self._views[id(slot), b][i]

    def start(self, b: int) -> Transfer:
        """The gradients of a bucket are final: starts to sum them."""
        slot = self._open.pop(b)
        start, stop, _ = self.buckets[b]
        work = self.wire.start_reduce_scatter(slot[: stop - start], self.buckets.algorithm)
        self._in_flight.append(ScatteredSum(b, slot, work))
        return work

    def poll(self) -> None:
        super().poll()
        while self._in_flight and self._in_flight[0].work.poll():
            self._add()

    def wait(self) -> None:
        while self._in_flight:
            self._wait_for_first()
        super().wait()

    def whole_gradient(self, i: int) -> Array:
        b = self.buckets.of[i]
        start, stop, _ = self.buckets[b]
        shard, array = self.shards[b], self.on.xp.zeros(stop - start, self.flat_grad.dtype)
        for piece in self.pieces([shard]):
            array[piece.start - start : piece.stop - start] = self.shard_gradient(piece)
        self.wire.all_gather(array, GATHER)
        return self.view(array, self.parameters[i], self.spans[i][0] - start)

    def slot_bytes(self) -> int:
        return int(self._count * self._longest * self.dtype.itemsize)

    def _take_slot(self, b: int) -> Array:
        """A slot for bucket b, whose padding is zero."""
        while not self._free and self._in_flight and self._count >= SLOTS:
            self._wait_for_first()
        if not self._free:
            self._free.append(self.on.xp.zeros(self._longest, self.dtype))
            self._count += 1
        slot = self._open[b] = self._free.pop()
        if (id(slot), b) not in self._views:
            self._views[id(slot), b] = self.bucket_views(slot, b)
        for lo, hi in self._padding[b]:
            slot[lo:hi] = 0
        return slot

    def bucket_views(self, memory: Array, b: int) -> dict[int, Array]:
        """A view for each parameter of bucket b, which is at the start of this memory."""
        origin = self.buckets[b].start
        return {
            i: self.view(memory, self.parameters[i], self.spans[i][0] - origin)
            for i in self.buckets.members[b]
        }

    def _wait_for_first(self) -> None:
        self._in_flight[0].work.wait()
        self._add()

    def _add(self) -> None:
        """Adds the shard of the oldest sum, which is complete."""
        b, slot, _ = self._in_flight.popleft()
        shard, origin = self.shards[b], self.buckets[b].start
        new, own = slot[shard.start - origin : shard.stop - origin], self.flat_grad[shard.packed]
        if b in self._has_sum:
            own += new
        else:
            own[...] = new
            self._has_sum.add(b)
        self._free.append(slot)

    def _padding_of(self, b: int) -> list[Stretch]:
        """Where in a slot no parameter of bucket b is."""
        origin, found = self.buckets[b].start, list[Stretch]()
        for i in self.buckets.members[b]:
            start, end = self.spans[i]
            lo, hi = start + self.parameters[i].size - origin, end - origin
            if lo < hi:
                found.append((lo, hi))
        return found


class ShardedParameterStore(ShardedGradientStore):
    """`flat` has the values of this rank's shards, packed."""

    rotates = True

    def allocate_values(self) -> None:
        self.flat = self.on.xp.zeros(self.shards[-1].packed.stop, self.dtype)
        lengths = [stop - start for start, stop, _ in self.buckets]
        longest = [max(lengths[s::SLOTS]) for s in range(min(SLOTS, len(lengths)))]
        self._weight_slots = [self.on.xp.zeros(n, self.dtype) for n in longest]
        self._weights = [self._weight_slots[b % SLOTS][:n] for b, n in enumerate(lengths)]
        views = [self.bucket_views(bucket, b) for b, bucket in enumerate(self._weights)]
        self.values = [views[b][i] for i, b in enumerate(self.buckets.of)]
        self._walk = SlotWalk(self.buckets.stages)
        self._arriving: dict[int, Transfer] = {}  # by slot, the newest last
        self._node, self._bucket_of_node = 0, NONE

    def shard_values(self, shard: Shard) -> Array:
        return self.flat[shard.packed]

    def take(self, i: int, p: Parameter) -> None:
        self._keep(i, memory_order(p, self.on.asarray(p.data)))

    def complete_value(self, i: int) -> Array:
        self._bring(self.buckets.of[i], FORWARD)
        return self.values[i]

    def refresh(self, i: int, made: int) -> None:
        """The bucket of parameter i is in its slot again, for the vjps of node number `made`."""
        self.check_reading(i)
        b = self.buckets.of[i]
        if made == self._node and b != self._bucket_of_node:
            self._refuse(i)
        self._node, self._bucket_of_node = made, b
        self._bring(b, BACKWARD)

    def written(self, i: int) -> None:
        """The values of parameter i were written from outside, in its slot."""
        if not self._whole:
            assert self._walk.holds(self.buckets.of[i])
            self._keep(i, memory_order(self.parameters[i], self.values[i]))

    def gather(self) -> None:
        """All ranks have updated their shards. The bucket that was used first comes again."""
        self.wait()
        for b in self._walk.updated():
            self._start(b)

    def slot_bytes(self) -> int:
        return super().slot_bytes() + sum(int(slot.nbytes) for slot in self._weight_slots)

    def _progress(self) -> None:
        if self._arriving:
            next(reversed(self._arriving.values())).poll()  # which moves the others too

    def wait(self) -> None:
        super().wait()
        for work in self._arriving.values():
            work.wait()

    def _bring(self, b: int, towards: int) -> None:
        """Bucket b is in its slot; the next one in this direction is on its way."""
        due = self._walk.use(b, towards)
        if b in due:
            self._start(b)
        work = self._arriving.pop(b % SLOTS, None)
        if work is not None:
            wait_for_gather(work)
        for other in due:
            if other != b:
                self._start(other)

    def _start(self, b: int) -> None:
        """Starts to gather bucket b, when its slot is free."""
        before = self._arriving.pop(b % SLOTS, None)
        if before is not None:
            before.wait()
        shard, origin = self.shards[b], self.buckets[b].start
        self._weights[b][shard.start - origin : shard.stop - origin] = self.shard_values(shard)
        self.order = (31 * self.order + b + 1) % ORDERS
        self._arriving[b % SLOTS] = self.gathers.start_all_gather(self._weights[b], GATHER)

    def _keep(self, i: int, values: Array) -> None:
        """Copies this rank's shards of parameter i from its values, flat in the order of memory."""
        start = self.spans[i][0]
        for shard in within(self.shards, start, start + values.size):
            self.shard_values(shard)[...] = values[shard.start - start : shard.stop - start]

    def _refuse(self, i: int) -> None:
        members = self.buckets.members[self._bucket_of_node]
        one, other = (self.parameters[k].place.path for k in (members[0], i))
        raise ValueError(
            f"zero 3 gathers the parameters of one layer at a time, and one operation uses {other} "
            f"and a parameter of another layer, which is gathered with {one}: give both to one "
            "module, or use --zero 2"
        )
