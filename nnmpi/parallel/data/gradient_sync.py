"""Syncs of data parallelism: gradients are summed over dp, bucket by bucket, in backward passes."""

from collections.abc import Callable
from typing import Any, TypeAlias

from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.comm import Comm, Work
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores import USED, Buckets, LocalStore, fill_unused
from nnmpi.parallel.zero.slots import ShardedGradientStore

StartSum: TypeAlias = Callable[[int], Work | None]
"""Starts the sum of a bucket, by its number; None if it is complete."""


def nothing_to_sum(b: int) -> None:
    """On one rank all sums are complete."""


def in_place(
    store: LocalStore, buckets: Buckets, algorithm: str, scattered: Comm | None = None
) -> StartSum:
    """Sums replace the gradients in their buffer.

    Of buckets that are summed over the Comm `scattered`, each rank gets its shard only, if the
    algorithm has halves. Others are summed whole.
    """

    def start(b: int) -> Work:
        start, stop, comm = buckets[b]
        array = store.flat_grad[start:stop]
        if is_scattered(comm, algorithm, scattered):
            return comm.start_reduce_scatter(array, algorithm)
        return comm.start(array, algorithm)

    return start


def is_scattered(comm: Comm, algorithm: str, scattered: Comm | None) -> bool:
    """Whether a sum over a Comm leaves its shard to each rank."""
    return comm is scattered and algorithm in REDUCE_SCATTERS


class BucketedSync(GradientSync):
    """The sum of a bucket starts when it is complete, in one order on every rank.

    The loss, the stop flag and which parameters were used are in the scalars of the store, which
    most stores send with the first bucket of the buffer, the last one that is summed. Without
    `overlap` all sums wait for the end of the backward pass, and those over dp for each other. Sums
    over other stages too (one parameter each) wait for nothing: the ranks of two stages start them
    in different orders.
    """

    def __init__(
        self,
        store: LocalStore,
        buckets: Buckets,
        start: StartSum,
        overlap: bool,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self._store, self._buckets, self._start = store, buckets, start
        self._overlap, self._recorder = overlap, recorder
        self._members = [[store.parameters[i] for i in members] for members in buckets.members]
        self._uses = [sum(len(buckets.users[i]) for i in own) for own in buckets.members]

    def begin(self, step: int) -> None:
        self._store.begin()
        self._due, self._left = [*range(len(self._buckets))], [*self._uses]
        self._works: list[Work] = []

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

    def _start_next(self) -> Work | None:
        b = self._due.pop()
        fill_unused(self._members[b])
        if not b:
            self._store.note_used()
        work = self._start(b)
        if work is not None:
            self._works.append(work)
        return work


class ScatteredSync(GradientSync):
    """The sync of ZeRO 2 and 3: gradients leave in each backward pass.

    The buckets of a stage start in one order on every rank, the last ones first, as soon as the
    pass is done with all their parameters; those with parameters that it does not use, at its end.
    Without `overlap` each sum is complete before the backward pass goes on.
    """

    every_pass = True

    def __init__(
        self, store: ShardedGradientStore, overlap: bool, recorder: Recorder = NO_RECORDER
    ) -> None:
        self._store, self._buckets = store, store.buckets
        self._overlap, self._recorder = overlap, recorder
        self._due: list[int] = []

    def begin(self, step: int) -> None:
        self._store.begin()
        self._store.scalars[USED:] = 0

    def begin_pass(self, stage: int) -> None:
        self._end_pass()
        buckets = self._buckets
        self._due = [b for b in range(len(buckets)) if stage in buckets.stages[b]]
        self._left = {
            b: sum(stage in buckets.users[i] for i in buckets.members[b]) for b in self._due
        }

    def reduce(self, loss: Any, stop: bool) -> None:
        self._store.note_loss(loss, stop)

    def ready(self, p: Parameter) -> None:
        self._left[self._buckets.of[p.index]] -= 1
        while self._due and not self._left[self._due[-1]]:
            self._start_next()

    def poll(self) -> None:
        self._store.poll()

    def finish(self) -> None:
        began = self._recorder.now()
        self._end_pass()
        self._store.show_sums()
        self._recorder.add("sums", began)

    def _end_pass(self) -> None:
        """Starts the buckets with parameters that the backward pass has not used."""
        while self._due:
            self._start_next()

    def _start_next(self) -> None:
        """Starts the sum of a bucket; the next backward pass writes other gradients."""
        store, b = self._store, self._due.pop()
        members = [store.parameters[i] for i in self._buckets.members[b]]
        fill_unused(members)
        for p in members:
            if p.has_grad:
                store.scalars[USED + p.index] = 1
            p.has_grad = False
        work = store.start(b)
        if not self._overlap:
            work.wait()
