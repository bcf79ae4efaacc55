"""ShardedParameterStore: ZeRO 3, whole values of two buckets only, gathered when they are used.

Bucket b is always in slot b mod 2 (see `SlotWalk`), so its memory is always at the same place. So
an array that a vjp keeps is right whenever the bucket is there, and the tape sees to that: it calls
`refresh` before the vjps of a node.
"""

import numpy as np

from nnmpi.backend import Array
from nnmpi.comm import Work
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.store import Shard, within
from nnmpi.parallel.arrangement.slot_walk import BACKWARD, FORWARD, NONE, SLOTS, SlotWalk
from nnmpi.parallel.zero.gradients import ShardedGradientStore
from nnmpi.parallel.zero.store import GATHER, wait_for_gather

ORDERS = 1_000_003  # checksums of orders; the sum of their squares over many ranks is exact


class ShardedParameterStore(ShardedGradientStore):
    """`flat` has the values of this rank's shards, packed."""

    rotates = True

    def allocate_values(self) -> None:
        self.flat = np.zeros(self.shards[-1].packed.stop, self.dtype)
        lengths = [stop - start for start, stop, _ in self.buckets]
        longest = [max(lengths[s::SLOTS]) for s in range(min(SLOTS, len(lengths)))]
        self._weight_slots = [np.zeros(n, self.dtype) for n in longest]
        self._weights = [self._weight_slots[b % SLOTS][:n] for b, n in enumerate(lengths)]
        views = [self.bucket_views(bucket, b) for b, bucket in enumerate(self._weights)]
        self.values = [views[b][i] for i, b in enumerate(self.buckets.of)]
        self._walk = SlotWalk(self.buckets.stages)
        self._arriving: dict[int, Work] = {}  # by slot, the newest last
        self._node, self._bucket_of_node = 0, NONE

    def shard_values(self, shard: Shard) -> Array:
        return self.flat[shard.packed]

    def take(self, i: int, p: Parameter) -> None:
        self._keep(i, memory_order(p, p.data))

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
        return super().slot_bytes() + sum(slot.nbytes for slot in self._weight_slots)

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
