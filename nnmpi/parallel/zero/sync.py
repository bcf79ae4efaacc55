"""ShardedSync: the GradientSync of ZeRO 2 and 3; gradients leave in each backward pass.

The buckets of a stage start in one order on every rank, the last ones first, as soon as the pass is
done with all their parameters; those with parameters that it does not use, at its end.
"""

from typing import Any

from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.stores.head import LOSS, STOP, USED
from nnmpi.parallel.zero.store import ShardedStore


class ShardedSync:
    """Without `overlap` each sum is complete before the backward pass goes on."""

    def __init__(
        self, store: ShardedStore, overlap: bool, recorder: Recorder = NO_RECORDER
    ) -> None:
        self._store, self._overlap, self._recorder = store, overlap, recorder
        self._shards = store.shards
        self._due: list[int] = []

    def begin(self, step: int) -> None:
        self._store.begin()
        self._store.head_values[USED:] = 0

    def backward(self, stage: int) -> bool:
        self._end_pass()
        shards = self._shards
        self._due = [b for b in range(len(shards.buckets)) if stage in shards.stages[b]]
        self._left = {
            b: sum(stage in shards.users[i] for i in shards.members[b]) for b in self._due
        }
        return True

    def reduce(self, loss: Any, stop: bool) -> None:
        head = self._store.head_values
        head[LOSS], head[STOP] = loss, stop

    def ready(self, p: Parameter) -> None:
        self._left[self._shards.bucket_of[p.index]] -= 1
        while self._due and not self._left[self._due[-1]]:
            self._start(self._due.pop())

    def poll(self) -> None:
        self._store.poll()

    def finish(self) -> None:
        """Starts what is left, and waits for all sums."""
        began = self._recorder.now()
        self._end_pass()
        self._store.summed()
        self._recorder.add("sums", began)

    def _end_pass(self) -> None:
        """Starts the buckets with parameters that the backward pass has not used."""
        while self._due:
            self._start(self._due.pop())

    def _start(self, b: int) -> None:
        """The next backward pass writes other gradients."""
        store, head = self._store, self._store.head_values
        for i in self._shards.members[b]:
            p = store.parameters[i]
            if p.has_grad:
                head[USED + i] = 1
            else:
                p.slot[...] = 0
            p.has_grad = False
        work = store.start(self._shards.buckets[b])
        if not self._overlap:
            work.wait()
