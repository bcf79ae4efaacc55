"""WeightSlots: the values of ZeRO 3, of which this rank keeps its shards, gathered for their use.

The list of a step says when a bucket is gathered into its slot, and when it has to be there. It is
always in the same slot, so an array that a vjp has kept is valid whenever the bucket is there.

A forward pass by the tape cannot stop between its units. When it reads a bucket that is not there,
the list goes on to the next unit (`go_on`), within the pass. Outside of lists a bucket is gathered
when it is read: in `reading` and `gathered` of the store, which all ranks enter, and when it is
closed. There all ranks have to read the same values in the same order.
"""

from nnmpi.arrays.backend import Array
from nnmpi.nn.store import Shard
from nnmpi.parallel.recorder import go_on, waiting
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.values import value_slots
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import Transfer, Wire


class WeightSlots:
    """The weights under ZeRO 3: this rank's shards, packed in `flat` (which is the master weights,
    if there are any), and slots into which whole buckets are gathered."""

    rotates = True

    def __init__(self, store: LocalStore, gathers: Wire) -> None:
        self._parameters, buckets = store.parameters, store.buckets
        self._gathers, self._of = gathers, buckets.of
        xp, dtype, masters = store.on.xp, store.dtype, store.masters
        self.flat = xp.zeros(store.shards[-1].packed.stop, dtype) if masters is None else masters
        self._shards = [self.flat[shard.packed] for shard in store.shards]
        lengths = [stop - start for start, stop, _ in buckets.all]
        a = store.arrangement
        self._slots = slots = value_slots(a, chain_of(a, store.rank))
        longest = {
            s: max(n for b, n in enumerate(lengths) if slots[b] == s) for s in slots.values()
        }
        memory = {s: xp.zeros(n, dtype) for s, n in longest.items()}
        self.slot_bytes = sum(int(slot.nbytes) for slot in memory.values())
        self._weights = [memory[slots[b]][:n] for b, n in enumerate(lengths)]
        self._my_chunks = [weights[gathers.chunk(len(weights))] for weights in self._weights]
        views = [buckets.views(array, b, self._parameters) for b, array in enumerate(self._weights)]
        self._values = [views[b][i] for i, b in enumerate(self._of)]
        self._arriving = dict[int, Transfer]()  # by bucket, the newest last
        self._there = dict[int, int]()  # by slot: the bucket in it

    def shard_view(self, shard: Shard) -> Array:
        """The memory of the values of a shard."""
        return self.flat[shard.packed]

    def value(self, i: int) -> Array:
        """The values of parameter i, in a slot."""
        b = self._of[i]
        while self._there.get(self._slots[b]) != b:
            if not go_on.get()(self._parameters[i].place.path):
                self.wait_for(b)
        return self._values[i]

    def fixed(self, i: int) -> Array:
        """The memory of the values of parameter i, while its bucket is in its slot."""
        return self._values[i]

    def current(self, i: int) -> Array:
        """The values of parameter i, whose bucket must be in its slot."""
        assert self._there.get(self._slots[self._of[i]]) == self._of[i]
        return self._values[i]

    def gather_bucket(self, b: int) -> None:
        """Starts to gather a bucket; every rank has updated its own shard."""
        self._there.pop(self._slots[b], None)
        self._my_chunks[b][...] = self._shards[b]
        self._arriving[b] = self._gathers.start_all_gather(self._weights[b], GATHER)

    def wait_for(self, b: int) -> None:
        """Waits for a bucket. The first list, or one after other reads, begins without the gathers
        of the list before: then they start now."""
        if self._there.get(self._slots[b]) == b:
            return
        if b not in self._arriving:
            self.wait()
            self.gather_bucket(b)
        with waiting("gather"):
            self._arriving.pop(b).wait()
        self._there[self._slots[b]] = b

    def updated(self) -> None:
        """Forgets all values, which ranks have written in their shards."""
        self.wait()
        self._there.clear()

    def poll(self) -> None:
        """Moves the messages of gathers under way."""
        if self._arriving:
            next(reversed(self._arriving.values())).poll()  # one poll moves all messages

    def wait(self) -> None:
        """Waits for all gathers under way."""
        for b in [*self._arriving]:
            self.wait_for(b)
