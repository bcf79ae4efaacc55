"""WeightSlots: the values of ZeRO 3. A rank keeps its shards; buckets are gathered when used.

The list of a step says when a bucket is gathered into its slot, and when the values must be
complete. A bucket always uses the same slot, so a view that a vjp has kept is valid whenever the
bucket is in its slot.

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
    """Keeps this rank's shards of the parameters in `flat`, which is the array of masters in mixed
    precision, and slots: memory into which whole buckets are gathered."""

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
        """Returns the values of parameter i, in a slot. If its bucket is not there, runs the next
        operations of the list, or gathers the bucket if no list is running."""
        b = self._of[i]
        while self._there.get(self._slots[b]) != b:
            if not go_on.get()(self._parameters[i].place.path):
                self.wait_for(b)
        return self._values[i]

    def fixed(self, i: int) -> Array:
        """Returns the memory for the values of parameter i in the slot of its bucket; another
        bucket may be in it."""
        return self._values[i]

    def current(self, i: int) -> Array:
        """The values of parameter i, whose bucket must be in its slot."""
        assert self._there.get(self._slots[self._of[i]]) == self._of[i]
        return self._values[i]

    def gather_bucket(self, b: int) -> None:
        """Starts to gather bucket b into its slot; every rank has updated its own shard."""
        self._there.pop(self._slots[b], None)
        self._my_chunks[b][...] = self._shards[b]
        self._arriving[b] = self._gathers.start_all_gather(self._weights[b], GATHER)

    def wait_for(self, b: int) -> None:
        """Waits until bucket b is in its slot; gathers it first if that was not started. Lists
        start a gather ahead of its use, except for those with which the first list begins."""
        if self._there.get(self._slots[b]) == b:
            return
        if b not in self._arriving:
            self.wait()
            self.gather_bucket(b)
        with waiting("gather"):
            self._arriving.pop(b).wait()
        self._there[self._slots[b]] = b

    def updated(self) -> None:
        """Marks all slots as empty, because shards have new values."""
        self.wait()
        self._there.clear()

    def poll(self) -> None:
        """Progresses the gathers that are in progress."""
        if self._arriving:
            next(reversed(self._arriving.values())).poll()  # one poll moves all messages

    def wait(self) -> None:
        """Waits for all gathers that are in progress."""
        for b in [*self._arriving]:
            self.wait_for(b)
