"""Syncs of data parallelism: gradients are summed over dp, bucket by bucket, in backward passes."""

from collections.abc import Mapping
from typing import Any

from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores import USED, LocalStore, fill_unused
from nnmpi.parallel.wire import Transfer, Wire
from nnmpi.parallel.zero.slots import ShardedGradientStore


class BucketedSync(GradientSync):
    """The sum of a bucket starts when it is complete, in one order on every rank.

    The loss, the stop flag and which parameters were used are in the scalars of the store, which
    most stores send with the first bucket of the buffer, the last one that is summed. Without
    `overlap` all sums wait for the end of the backward pass, and those over dp for each other. Sums
    over other stages too (one parameter each) wait for nothing: the ranks of two stages start them
    in different orders.
    """

    def __init__(self, store: LocalStore, overlap: bool, recorder: Recorder = NO_RECORDER) -> None:
        self._store, self._buckets = store, store.buckets
        self._overlap, self._recorder = overlap, recorder
        self._members = [[store.parameters[i] for i in own] for own in self._buckets.members]
        self._uses = [
            sum(len(self._buckets.users[i]) for i in own) for own in self._buckets.members
        ]
        self._works: list[Transfer] = []

    def begin(self, step: int) -> None:
        self._store.begin()
        self._due, self._left = [*range(len(self._buckets))], [*self._uses]
        self._works.clear()

    def reduce(self, loss: Any, stop: bool) -> None:
        self._store.note_loss(loss, stop)

    def ready(self, p: Parameter) -> None:
        self._left[self._buckets.of[p.index]] -= 1
        if self._overlap:
            while self._due and not self._left[self._due[-1]]:
                self._start_next()

    def poll(self) -> None:
        if self._works:
            self._works[0].poll()

    def finish(self) -> None:
        """Starts what is left, unused parameters included, and waits for all sums."""
        began, dp = self._recorder.now(), self._buckets[0].comm
        while self._due:
            b, work = self._due[-1], self._start_next()
            if work is not None and not self._overlap and self._buckets[b].comm is dp:
                work.wait()
        for work in self._works:
            work.wait()
        self._store.show_sums()
        self._recorder.add("sums", began)

    def _start_next(self) -> Transfer | None:
        b = self._due.pop()
        fill_unused(self._members[b])
        if not b:
            self._store.note_used()
        work = self._store.start(b)
        if work is not None:
            self._works.append(work)
        return work


class ScatteredSync(BucketedSync):
    """The sync of ZeRO 2 and 3: gradients leave in each backward pass.

    tied: for each bucket that other stages have too, the ranks with the same shard of it, over
    which that is summed at the end of a step

    The buckets of a stage start in one order on every rank, the last ones first, as soon as the
    pass is done with all their parameters; those with parameters that it does not use, at its end.
    Without `overlap` each sum is complete before the backward pass goes on.
    """

    every_pass = True
    _store: ShardedGradientStore

    def __init__(
        self,
        store: ShardedGradientStore,
        overlap: bool,
        recorder: Recorder,
        tied: Mapping[int, Wire],
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
        for b, stages in self._tied.items():
            own = self._store.flat_grad[self._store.shards[b].packed]
            stages.all_reduce(own, self._buckets.algorithm)

    def _start_next(self) -> None:
        """Starts the sum of a bucket; the next backward pass writes other gradients."""
        store, b = self._store, self._due.pop()
        fill_unused(self._members[b])
        for p in self._members[b]:
            if p.has_grad:
                store.scalars[USED + p.index] = 1
            p.has_grad = False
        work = store.start(b)
        if self._waits:
            work.wait()
