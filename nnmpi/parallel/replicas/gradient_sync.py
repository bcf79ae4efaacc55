"""Syncs of data parallelism: gradients are summed over dp, bucket by bucket, in backward passes.

Rules:

- Buckets start in the order of their numbers, the last one first, never in that in which they are
  final: ranks differ in that, and collectives of one Comm have to be called in one order.
- Bucket 0 is last, since its scalars say which parameters were used; nobody knows before.
- Gradients are not set to 0 between steps. A parameter without one has an old one in memory, so
  `fill_unused` comes before the sum.
"""

from typing import Any

from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores.local import LocalStore, fill_unused
from nnmpi.parallel.wire import Transfer


class BucketedSync(GradientSync):
    """The sum of a bucket starts when it is complete, in one order on every rank.

    The loss, the request and which parameters were used are in the scalars of the store, which
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
        self._due, self._left = [*range(len(self._buckets.all))], [*self._uses]
        self._works.clear()

    def reduce(self, loss: Any, request: float) -> None:
        self._store.note_loss(loss, request)

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
        began, dp = self._recorder.now(), self._buckets.all[0].comm
        while self._due:
            b, work = self._due[-1], self._start_next()
            if work is not None and not self._overlap and self._buckets.all[b].comm is dp:
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
