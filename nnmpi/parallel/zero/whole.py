"""WholeValues and WholeGradients: flat buffers with all of them, of which this rank updates parts.

After an update each rank has new values in its parts, and all ranks gather those of all. The
gathers start in the order of the next forward pass, few at a time, and go on during it: a parameter
waits for its bucket when it is used. They have a Comm of their own, on which each rank may start
the next one when it finds the time.
"""

import numpy as np

from nnmpi.backend import Array
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.recorder import current_recorder
from nnmpi.parallel.stores.local import Bucket, Sum
from nnmpi.parallel.stores.replica import set_up
from nnmpi.parallel.zero.shards import Part, Shards

AT_ONCE = 4  # gathers
GATHER = "ring"


class WholeValues:
    """All values; `gathers` has the same ranks as `dp`."""

    rotates = False
    order = 0

    def __init__(self, store: FlatStore, shards: Shards, dp: Comm, gathers: Comm) -> None:
        self._flat = np.zeros(shards.length, store.dtype)
        self._arrays = store.views(self._flat)
        self._shards, self._gathers = shards, gathers
        own = range(len(shards.buckets))
        self._order = [b for b in own if shards.buckets[b].comm is dp]
        self._others = [b for b in own if shards.buckets[b].comm is not dp]
        self._place = {b: k for k, b in enumerate(self._order)}
        self._started = len(self._order)
        self._works: dict[int, Sum] = {}
        self._is_complete = True
        self.nbytes, self.slot_nbytes = self._flat.nbytes, 0

    def take(self, i: int, p: Parameter) -> None:
        """Copies the values of p, parameter i, from the store that it is in."""
        self._arrays[i][...] = p.data

    def array(self, i: int) -> Array:
        """The values of parameter i, as soon as they are complete; others progress."""
        if not self._is_complete:
            self._wait_for(self._shards.bucket_of[i])
            self.poll()
        return self._arrays[i]

    def refresh(self, i: int, made: int) -> None:
        """They are in their place at all times."""

    def written(self, i: int) -> None:
        """What was written is in its place."""

    def part(self, part: Part) -> Array:
        """The values that this rank updates."""
        return self._flat[part.start : part.stop]

    def updated(self) -> None:
        """All ranks have updated their parts."""
        for b in self._others:  # first, since the next sum on their Comms may start before a use
            self._works[b] = self._gather(b, self._shards.buckets[b].comm)
        self._started, self._is_complete = 0, False
        self.poll()

    def poll(self) -> None:
        """Messages progress; the next gathers start when others are complete."""
        while self._works:
            b, work = next(iter(self._works.items()))
            if not work.poll():
                break
            del self._works[b]
        while self._started < len(self._order) and len(self._works) < AT_ONCE:
            self._start_next()
        self._is_complete = not self._works

    def wait(self) -> None:
        """No message is under way."""
        for b in range(len(self._shards.buckets)):
            self._wait_for(b)
        self._is_complete = True

    def _wait_for(self, b: int) -> None:
        while self._started <= self._place.get(b, -1):
            self._start_next()
        work = self._works.pop(b, None)
        if work is not None:
            recorder = current_recorder.get()
            began = recorder.now()
            work.wait()
            recorder.add("gather", began)

    def _start_next(self) -> None:
        b = self._order[self._started]
        self._works[b] = self._gather(b, self._gathers)
        self._started += 1

    def _gather(self, b: int, comm: Comm) -> Sum:
        start, stop, _ = self._shards.buckets[b]
        return comm.start_all_gather(self._flat[start:stop], GATHER)


class WholeGradients:
    """All gradients; a sum leaves this rank's part of it, or all of it, in their place."""

    slot_nbytes = 0

    def __init__(self, store: FlatStore, shards: Shards, dp: Comm, algorithm: str) -> None:
        self._flat = np.zeros(shards.length, store.dtype)
        self._views = store.views(self._flat)
        self._shards, self._dp, self._algorithm = shards, dp, algorithm
        self.nbytes = self._flat.nbytes
        whole = [bucket for bucket in shards.buckets if not self._has_halves(bucket)]
        set_up(whole, store.dtype, algorithm)

    def begin(self) -> None:
        """Starts a step."""

    def view(self, i: int) -> Array:
        """The memory of the gradient of parameter i."""
        return self._views[i]

    def start(self, b: int) -> Sum:
        """Starts the sum of a bucket.

        It is whole where the algorithm has no halves, and where a bucket is summed over other
        ranks than those of dp: they count its squares in other parts than they update.
        """
        bucket = self._shards.buckets[b]
        array = self._flat[bucket.start : bucket.stop]
        if self._has_halves(bucket):
            return bucket.comm.start_reduce_scatter(array, self._algorithm)
        return bucket.comm.start(array, self._algorithm)

    def poll(self) -> None:
        """Whoever has started a sum polls it."""

    def wait(self) -> None:
        """Whoever has started a sum waits for it."""

    def part(self, part: Part) -> Array:
        """The sums of this rank."""
        return self._flat[part.start : part.stop]

    def whole(self, i: int) -> Array:
        """The sum of parameter i; every rank of dp calls it."""
        start, stop, comm = self._shards.buckets[self._shards.bucket_of[i]]
        if comm is self._dp:
            comm.all_gather(self._flat[start:stop], GATHER)
        return self._views[i]

    def _has_halves(self, bucket: Bucket) -> bool:
        return bucket.comm is self._dp and self._algorithm in REDUCE_SCATTERS
