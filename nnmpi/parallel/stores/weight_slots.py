"""WeightSlots: the parameters of ZeRO 3. A rank keeps its shards; whole buckets are gathered, when
the rank's list says so, into slots (memory that buckets use in turn).

A bucket always uses the same slot, so a view that a backward function keeps is valid whenever the
bucket is in its slot. A forward pass through modules cannot stop between units: when it reads a
bucket that is not in memory, its next unit begins (`unit_values.py`). Outside of a step a bucket is
gathered when it is read: within the contexts `reading` and `gathered`, which all ranks enter, and
when the store is closed. There all ranks have to read the same values in the same order."""

from nnmpi.arrays.backend import Array
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.values import value_slots
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.stores.unit_values import UnitValues
from nnmpi.parallel.wire import Transfer, Wire


class WeightSlots:
    """Keeps the parameters of a rank under ZeRO 3: its shards in `flat`, in mixed precision the
    float32 masters; and slots, into which whole buckets are gathered in turn."""

    rotates = True

    def __init__(self, store: LocalStore, gathers: Wire) -> None:
        self._parameters, buckets = store.parameters, store.buckets
        self._gathers, self._of = gathers, buckets.of
        xp, dtype, masters = store.on.xp, store.dtype, store.masters
        self.flat = xp.zeros(store.shards[-1].packed.stop, dtype) if masters is None else masters
        self._shards = [self.flat[shard.packed] for shard in store.shards]
        self._slots = value_slots(store.arrangement, chain_of(store.arrangement, store.rank))
        in_slots = buckets.in_slots(self._slots, self._parameters, dtype, store.on)
        self._weights, self._values, self.slot_bytes = in_slots
        self._my_chunks = [weights[gathers.chunk(len(weights))] for weights in self._weights]
        self._arriving = dict[int, Transfer]()  # by bucket, the newest last
        self._there = dict[int, int]()  # by slot: the bucket in it
        self.units = UnitValues()

    def value(self, i: int) -> Array:
        """Returns the values of parameter i. If its bucket is not in memory, the next unit of the
        pass under way begins, which asks for its values; without a pass the bucket is gathered."""
        b = self._of[i]
        while self._there.get(self._slots[b]) != b:
            if not self.units.next_unit(self._parameters[i].place.path):
                self.wait_for(b)
        return self._values[i]

    def fixed(self, i: int) -> Array:
        """Returns the array in which parameter i is whenever its bucket is gathered."""
        return self._values[i]

    def current(self, i: int) -> Array:
        """Returns the values of parameter i, whose bucket must be in memory."""
        assert self._there.get(self._slots[self._of[i]]) == self._of[i]
        return self._values[i]

    def gather(self, b: int) -> None:
        """Starts to gather bucket b into its slot, after every rank has updated its shard."""
        self._there.pop(self._slots[b], None)
        self._my_chunks[b][...] = self._shards[b]
        self._arriving[b] = self._gathers.start_all_gather(self._weights[b], GATHER)

    def wait_for(self, b: int) -> None:
        """Waits until all parameters of bucket b are in memory, and starts the gather if that was
        not done: for those in progress when the first step begins."""
        if self._there.get(self._slots[b]) == b:
            return
        if b not in self._arriving:
            self.wait()
            self.gather(b)
        with waiting("gather"):
            self._arriving.pop(b).wait()
        self._there[self._slots[b]] = b

    def updated(self) -> None:
        """Declares gathered parameters invalid, since shards have new values."""
        self.wait()
        self._there.clear()

    def poll(self) -> None:
        """Progresses the gathers of parameters that have been started, without blocking."""
        if self._arriving:
            next(reversed(self._arriving.values())).poll()  # one poll moves all messages

    def wait(self) -> None:
        """Waits until all gathers of parameters that have been started are complete."""
        for b in [*self._arriving]:
            self.wait_for(b)
