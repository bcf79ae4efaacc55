"""The sync of ZeRO 2 and 3: gradients are scattered over the replicas in every backward pass."""

from collections.abc import Mapping

from nnmpi.parallel.arrangement.flat_buffer import USED
from nnmpi.parallel.recorder import Recorder
from nnmpi.parallel.replicas.gradient_sync import BucketedSync
from nnmpi.parallel.stores.local import LocalStore, fill_unused
from nnmpi.parallel.wire import Wire


class ScatteredSync(BucketedSync):
    """The sync of ZeRO 2 and 3: gradients leave in each backward pass.

    tied: for each bucket that other stages have too, the ranks with the same shard of it, over
    which that is summed at the end of a step

    The buckets of a stage start in one order on every rank, the last ones first, as soon as the
    pass is done with all their parameters; those with parameters that it does not use, at its end.
    Without `overlap` each sum is complete before the backward pass goes on.
    """

    every_pass = True

    def __init__(
        self, store: LocalStore, overlap: bool, recorder: Recorder, tied: Mapping[int, Wire]
    ) -> None:
        super().__init__(store, True, recorder)
        self._waits, self._tied = not overlap, tied

    def begin(self, step: int) -> None:
        self._store.begin()
        self._store.scalars[USED:] = 0
        self._due = []

    def begin_pass(self, stage: int) -> None:
        while self._due:  # with parameters that the pass before has not used
            self._start_next()
        self._due = [b for b, stages in enumerate(self._buckets.stages) if stage in stages]
        users, members = self._buckets.users, self._buckets.members
        self._left = [sum(stage in users[i] for i in own) for own in members]

    def poll(self) -> None:
        self._store.poll()

    def finish(self) -> None:
        super().finish()
        began = self._recorder.now()
        for b, stages in self._tied.items():
            own = self._store.shard_gradient(self._store.shards[b])
            stages.all_reduce(own, self._buckets.algorithm)
        self._recorder.add("sums", began)

    def _start_next(self) -> None:
        """Starts the sum of a bucket; the next backward pass writes other gradients."""
        store, b = self._store, self._due.pop()
        fill_unused(self._members[b])
        for p in self._members[b]:
            if p.has_grad:
                store.scalars[USED + p.index] = 1
            p.has_grad = False
        work = store.start(b)
        if self._waits and work is not None:
            work.wait()
