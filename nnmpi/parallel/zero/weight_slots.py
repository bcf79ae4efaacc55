"""WeightSlots: whole values of the bucket in use and of the next one, gathered when needed.

Bucket b is always in slot b mod 2 (see `SlotWalk`), so its memory is always at the same place. So
an array that a vjp keeps is right whenever the bucket is there, and the tape sees to that: it calls
`refresh` before the vjps of a node.
"""

import numpy as np

from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.arrangement.slot_walk import BACKWARD, FORWARD, NONE, SLOTS, SlotWalk
from nnmpi.parallel.recorder import current_recorder
from nnmpi.parallel.stores.local import Complete, Sum
from nnmpi.parallel.zero.shards import Part, Shards
from nnmpi.parallel.zero.whole import GATHER

COMPLETE = Complete()
ORDERS = 1_000_003  # checksums of orders; the sum of their squares over many ranks is exact


class WeightSlots:
    """The values of this rank's parts, packed, and two slots."""

    rotates = True

    def __init__(self, store: FlatStore, shards: Shards, dp: Comm, gathers: Comm) -> None:
        self._store, self._shards, self._gathers = store, shards, gathers
        self._own = np.zeros(shards.size, store.dtype)
        lengths = [stop - start for start, stop, _ in shards.buckets]
        longest = [max(lengths[s::SLOTS]) for s in range(min(SLOTS, len(lengths)))]
        self._slots = [np.zeros(n, store.dtype) for n in longest]
        self._buckets = [self._slots[b % SLOTS][:n] for b, n in enumerate(lengths)]
        self._arrays = [
            store.view(self._buckets[b], p, start - shards.buckets[b].start)
            for p, (start, _), b in zip(
                store.parameters, store.spans, shards.bucket_of, strict=True
            )
        ]
        self._walk = SlotWalk(shards.stages)
        self._works: list[Sum] = [COMPLETE] * len(self._slots)
        self._newest: Sum = COMPLETE
        self._node, self._bucket_of_node = 0, NONE
        self.order = 0
        self.nbytes = self._own.nbytes
        self.slot_nbytes = sum(slot.nbytes for slot in self._slots)

    def take(self, i: int, p: Parameter) -> None:
        """Copies this rank's part of the values of p, parameter i, from the store that it is in."""
        self._keep(i, memory_order(p, p.data))

    def array(self, i: int) -> Array:
        """The values of parameter i."""
        self._bring(self._shards.bucket_of[i], FORWARD)
        return self._arrays[i]

    def refresh(self, i: int, made: int) -> None:
        """The bucket of parameter i is in its slot again, for the vjps of node number `made`."""
        b = self._shards.bucket_of[i]
        if made == self._node and b != self._bucket_of_node:
            self._refuse(i)
        self._node, self._bucket_of_node = made, b
        self._bring(b, BACKWARD)

    def written(self, i: int) -> None:
        """The values of parameter i were written from outside, in its slot."""
        b = self._shards.bucket_of[i]
        assert self._walk.holds(b)
        self._keep(i, memory_order(self._store.parameters[i], self._arrays[i]))

    def part(self, part: Part) -> Array:
        """The values that this rank updates."""
        return self._own[part.packed]

    def updated(self) -> None:
        """All ranks have updated their parts. The bucket that was used first comes again."""
        self.wait()
        for b in self._walk.updated():
            self._start(b)

    def poll(self) -> None:
        """Messages progress."""
        self._newest.poll()

    def wait(self) -> None:
        """No message is under way."""
        for work in self._works:
            work.wait()

    def _bring(self, b: int, towards: int) -> None:
        """Bucket b is in its slot; the next one in this direction is on its way."""
        due = self._walk.use(b, towards)
        if b in due:
            self._start(b)
        work = self._works[b % SLOTS]
        if work is not COMPLETE:
            recorder = current_recorder.get()
            began = recorder.now()
            work.wait()
            recorder.add("gather", began)
            self._works[b % SLOTS] = COMPLETE
        for other in due:
            if other != b:
                self._start(other)

    def _start(self, b: int) -> None:
        """Starts to gather bucket b, when its slot is free."""
        self._works[b % SLOTS].wait()
        part, origin = self._shards.parts[b], self._shards.buckets[b].start
        self._buckets[b][part.start - origin : part.stop - origin] = self._own[part.packed]
        self.order = (31 * self.order + b + 1) % ORDERS
        self._newest = self._works[b % SLOTS] = self._gathers.start_all_gather(
            self._buckets[b], GATHER
        )

    def _keep(self, i: int, values: Array) -> None:
        """Copies this rank's part of parameter i from its values, flat in the order of memory."""
        start = self._store.spans[i][0]
        for part in self._shards.within(start, start + values.size):
            self._own[part.packed] = values[part.start - start : part.stop - start]

    def _refuse(self, i: int) -> None:
        members = self._shards.members[self._bucket_of_node]
        one, other = (self._store.parameters[k].place.path for k in (members[0], i))
        raise ValueError(
            f"zero 3 gathers the parameters of one layer at a time, and one operation uses {other} "
            f"and a parameter of another layer, which is gathered with {one}: give both to one "
            "module, or use --zero 2"
        )
