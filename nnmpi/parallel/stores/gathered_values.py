"""GatheredValues: the parameters under ZeRO 1 and 2, of which each rank has all.

After an update each rank has new values in its shards only, and all ranks gather all shards. The
gathers start in the order of the next forward pass, at most AT_ONCE at a time, and run during this
pass. The rank's list waits for a bucket before it is used. Gathers have their own communicator, so
each rank may start the next one whenever it has time.
"""

from collections import deque

from nnmpi.arrays.backend import Array
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import Transfer, Wire, wire_of

AT_ONCE = 4  # gathers under way


class GatheredValues:
    """Keeps the values of all parameters of this rank in the flat array `flat`. After an update,
    the values in a bucket are complete when its all-gather is."""

    rotates, slot_bytes, units = False, 0, None

    def __init__(self, store: LocalStore, gathers: Wire) -> None:
        self._buckets, self._gathers = store.buckets, gathers
        self._sums = wire_of(store.dp, store.on)
        self.flat = store.on.xp.zeros(store.length, store.dtype)
        self._values = store.views(self.flat)
        self._due = deque[int]()  # buckets that are to be gathered next
        self._works: dict[int, Transfer] = {}

    def value(self, i: int) -> Array:
        """Returns the values of parameter i, after waiting for the all-gather of its bucket: a
        forward pass may read a parameter before the rank's list waits for it."""
        if self._works or self._due:
            self.wait_for(self._buckets.of[i])
            self.poll()
        return self._values[i]

    def fixed(self, i: int) -> Array:
        """Returns the array of parameter i at once: an all-gather may still write to it."""
        return self._values[i]

    def current(self, i: int) -> Array:
        """Returns parameter i without waiting; its all-gather must be complete."""
        return self._values[i]

    def updated(self) -> None:
        """Starts to gather all buckets, after each rank has updated the values in its shards."""
        for b in range(len(self._buckets.all)):
            self.gather(b)

    def gather(self, b: int) -> None:
        """Starts or queues the gather of bucket b, after every rank has updated its shard."""
        comm = self._buckets.all[b].comm
        if comm is self._sums:
            self._due.append(b)
        else:  # at once: the next sum on this Comm may start before a use, on some ranks first
            self._start(b, comm)
        self.poll()

    def poll(self) -> None:
        """Progresses the gathers, and starts queued ones in place of those that are complete."""
        while self._works:
            b, work = next(iter(self._works.items()))
            if not work.poll():
                break
            del self._works[b]
        while self._due and len(self._works) < AT_ONCE:
            self._start(self._due.popleft(), self._gathers)

    def wait(self) -> None:
        """Waits until the updated values of all buckets are here."""
        for b in range(len(self._buckets.all)):
            self.wait_for(b)

    def wait_for(self, b: int) -> None:
        """Waits until bucket b has the updated values of all ranks."""
        while b in self._due:  # those before b first: gathers of a Comm start in one order
            self._start(self._due.popleft(), self._gathers)
        work = self._works.pop(b, None)
        if work is not None:
            with waiting("gather"):
                work.wait()

    def _start(self, b: int, comm: Wire) -> None:
        start, stop, _ = self._buckets.all[b]
        self._works[b] = comm.start_all_gather(self.flat[start:stop], GATHER)
