"""WeightSlots: the values of ZeRO 3, gathered when they are used, in two slots of a bucket each.

Bucket b is always in the same slot (see `SlotWalk`), so its values are always at the same address.
An array that a vjp has kept is therefore valid whenever the bucket is in its slot; the tape calls
`refresh` before the vjps of a node to bring it there.
"""

from nnmpi.arrays.backend import Array
from nnmpi.nn.store import Shard
from nnmpi.parallel.arrangement.program import BACKWARD, FORWARD, NONE, SlotWalk
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import Transfer, Wire

ORDERS = 65_521  # range of the checksum: squares add up exactly in float64 over 2 million ranks


class WeightSlots:
    """The weights under ZeRO 3: this rank's shards, packed in `flat` (which is the master weights,
    if there are any), and two slots into which whole buckets are gathered when they are used.

    order   a checksum of the buckets gathered so far and of their order, the same on all ranks
    """

    rotates, order = True, 0

    def __init__(self, store: LocalStore, gathers: Wire) -> None:
        self._parameters, buckets = store.parameters, store.buckets
        self._buckets, self._gathers, self._of = buckets, gathers, buckets.of
        xp, dtype, masters = store.on.xp, store.dtype, store.masters
        self.flat = xp.zeros(store.shards[-1].packed.stop, dtype) if masters is None else masters
        self._shards = [self.flat[shard.packed] for shard in store.shards]
        lengths = [stop - start for start, stop, _ in buckets.all]
        self._walk = walk = SlotWalk(buckets.stages, buckets.differ)
        longest = [max(lengths[s :: walk.slots]) for s in range(walk.slots)]
        slots = [xp.zeros(n, dtype) for n in longest]
        self.slot_bytes = sum(int(slot.nbytes) for slot in slots)
        self._weights = [slots[walk.slot(b)][:n] for b, n in enumerate(lengths)]
        self._my_chunks = [weights[gathers.chunk(len(weights))] for weights in self._weights]
        views = [buckets.views(array, b, self._parameters) for b, array in enumerate(self._weights)]
        self._values = [views[b][i] for i, b in enumerate(self._of)]
        self._arriving: dict[int, Transfer] = {}  # by slot, the newest last
        self._node, self._bucket_of_node = 0, NONE

    def shard_view(self, shard: Shard) -> Array:
        """The memory of the values of a shard."""
        return self.flat[shard.packed]

    def value(self, i: int) -> Array:
        """The values of parameter i, in a slot, for a forward pass; gathers its bucket if
        necessary."""
        self._bring(self._of[i], FORWARD)
        return self._values[i]

    def refresh(self, i: int, made: int) -> None:
        """Gathers the bucket of parameter i again, if necessary, for the vjps of tape node number
        `made`."""
        b = self._of[i]
        # one node would need two buckets at a time, and both may belong to the same slot
        is_other = made == self._node and b != self._bucket_of_node
        if is_other and not self._buckets.differ:
            members = self._buckets.members[self._bucket_of_node]
            first, other = (self._parameters[k].place.path for k in (members[0], i))
            raise ValueError(
                f"zero 3 gathers the parameters of one layer at a time, but one operation uses "
                f"{other} together with a parameter that is gathered with {first}: give both to "
                "one module, or use --zero 2"
            )
        self._node, self._bucket_of_node = made, b
        self._bring(b, BACKWARD)

    def current(self, i: int) -> Array:
        """The values of parameter i, whose bucket must be in its slot."""
        assert self._walk.holds(self._of[i])
        return self._values[i]

    def gather(self) -> None:
        """Starts the gathers with which the next forward pass begins; all ranks have updated their
        shards."""
        self.wait()
        for b in self._walk.updated():
            self._start(b)

    def gather_bucket(self, b: int) -> None:
        """Does nothing: a bucket is gathered when it is used."""

    def wait_for(self, b: int) -> None:
        """Does nothing: whoever uses a bucket waits for it."""

    def poll(self) -> None:
        """Moves the messages of gathers under way."""
        if self._arriving:
            next(reversed(self._arriving.values())).poll()  # one poll moves all messages

    def wait(self) -> None:
        """Waits for all gathers under way."""
        for work in self._arriving.values():
            work.wait()

    def _bring(self, b: int, towards: int) -> None:
        """Waits until bucket b is in its slot, and starts to gather the next one in this
        direction."""
        due, ahead = self._walk.use(b, towards)
        for other in due:
            self._start(other)
        work = self._arriving.pop(self._walk.slot(b), None)
        if work is not None:
            with waiting("gather"):
                work.wait()
        for other in ahead:
            self._start(other)

    def _start(self, b: int) -> None:
        """Starts to gather bucket b, once no other gather uses its slot."""
        earlier = self._arriving.pop(self._walk.slot(b), None)
        if earlier is not None:
            earlier.wait()
        self._my_chunks[b][...] = self._shards[b]
        self.order = (31 * self.order + b + 1) % ORDERS
        self._arriving[self._walk.slot(b)] = self._gathers.start_all_gather(
            self._weights[b], GATHER
        )
