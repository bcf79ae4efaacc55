"""WeightSlots: the values of ZeRO 3, whole in slots for two buckets, which gather them when used.

Bucket b is always in slot b mod 2 (see `SlotWalk`), so its memory is always at the same place. So
an array that a vjp keeps is right whenever the bucket is there, and the tape sees to that: it calls
`refresh` before the vjps of a node.
"""

from nnmpi.arrays.backend import Array
from nnmpi.nn.store import Shard
from nnmpi.parallel.arrangement.program import BACKWARD, FORWARD, NONE, SLOTS, SlotWalk
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import Transfer, Wire

ORDERS = 65_521  # checksums of orders; their squares add up exactly over 2 million ranks


class WeightSlots:
    """`flat` has the values of this rank's shards, packed: where there are masters, these.

    order   a checksum of what was gathered, in which order; all ranks have the same
    """

    rotates, order = True, 0

    def __init__(self, store: LocalStore, gathers: Wire) -> None:
        self._parameters, buckets = store.parameters, store.buckets
        self._buckets, self._gathers, self._of = buckets, gathers, buckets.of
        xp, dtype, masters = store.on.xp, store.dtype, store.masters
        self.flat = xp.zeros(store.shards[-1].packed.stop, dtype) if masters is None else masters
        self._shards = [self.flat[shard.packed] for shard in store.shards]
        lengths = [stop - start for start, stop, _ in buckets.all]
        longest = [max(lengths[s::SLOTS]) for s in range(min(SLOTS, len(lengths)))]
        slots = [xp.zeros(n, dtype) for n in longest]
        self.slot_bytes = sum(int(slot.nbytes) for slot in slots)
        self._weights = [slots[b % SLOTS][:n] for b, n in enumerate(lengths)]
        self._own = [weights[gathers.chunk(len(weights))] for weights in self._weights]
        views = [buckets.views(array, b, self._parameters) for b, array in enumerate(self._weights)]
        self._values = [views[b][i] for i, b in enumerate(self._of)]
        self._walk = SlotWalk(buckets.stages)
        self._arriving: dict[int, Transfer] = {}  # by slot, the newest last
        self._node, self._bucket_of_node = 0, NONE

    def own(self, shard: Shard) -> Array:
        """The memory of the values of a shard."""
        return self.flat[shard.packed]

    def value(self, i: int) -> Array:
        """The values of parameter i, in its slot."""
        self._bring(self._of[i], FORWARD)
        return self._values[i]

    def refresh(self, i: int, made: int) -> None:
        """The bucket of parameter i is in its slot again, for the vjps of node number `made`."""
        b = self._of[i]
        if made == self._node and b != self._bucket_of_node:
            members = self._buckets.members[self._bucket_of_node]
            first, other = (self._parameters[k].place.path for k in (members[0], i))
            raise ValueError(
                f"zero 3 gathers the parameters of one layer at a time, and one operation uses "
                f"{other} and a parameter of another layer, which is gathered with {first}: give "
                "both to one module, or use --zero 2"
            )
        self._node, self._bucket_of_node = made, b
        self._bring(b, BACKWARD)

    def here(self, i: int) -> Array:
        """The values of parameter i, which are in its slot."""
        assert self._walk.holds(self._of[i])
        return self._values[i]

    def gather(self) -> None:
        """All ranks have updated their shards. The bucket that was used first comes again."""
        self.wait()
        for b in self._walk.updated():
            self._start(b)

    def poll(self) -> None:
        """Gathers progress."""
        if self._arriving:
            next(reversed(self._arriving.values())).poll()  # which moves the others too

    def wait(self) -> None:
        """No gather is under way."""
        for work in self._arriving.values():
            work.wait()

    def _bring(self, b: int, towards: int) -> None:
        """Bucket b is in its slot; the next one in this direction is on its way."""
        due = self._walk.use(b, towards)
        if b in due:
            self._start(b)
        work = self._arriving.pop(b % SLOTS, None)
        if work is not None:
            with waiting("gather"):
                work.wait()
        for other in due:
            if other != b:
                self._start(other)

    def _start(self, b: int) -> None:
        """Starts to gather bucket b, when its slot is free."""
        earlier = self._arriving.pop(b % SLOTS, None)
        if earlier is not None:
            earlier.wait()
        self._own[b][...] = self._shards[b]
        self.order = (31 * self.order + b + 1) % ORDERS
        self._arriving[b % SLOTS] = self._gathers.start_all_gather(self._weights[b], GATHER)
