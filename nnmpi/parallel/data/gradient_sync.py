"""BucketedSync: the GradientSync of data parallelism; sums run during the backward pass."""

from collections.abc import Sequence
from typing import Any

from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.stores.head import LOSS, STOP, USED, fill_unused, used
from nnmpi.parallel.stores.local import Bucket, LocalStore, Sum


class BucketedSync:
    """The sum of a bucket starts when it is complete, in one order on every rank.

    The loss, the stop flag and which parameters were used are in the head of the store, which most
    stores send with the last bucket. Without `overlap` all sums wait for the end of the backward
    pass, and those over dp for each other. Sums over other stages too (one parameter each) wait for
    nothing: the ranks of two stages start them in different orders.
    """

    def __init__(
        self,
        store: LocalStore,
        buckets: Sequence[Bucket],
        overlap: bool,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self._store, self._buckets, self._overlap = store, buckets, overlap
        self._recorder = recorder
        self._bucket = {
            p: next(b for b, bucket in enumerate(buckets) if start >= bucket.start)
            for p, (start, _) in zip(store.parameters, store.spans, strict=True)
        }
        self._members = [
            [p for p, own in self._bucket.items() if own == b] for b in range(len(buckets))
        ]

    def begin(self, step: int) -> None:
        self._store.begin()
        self._left = [len(members) for members in self._members]
        self._next = 0
        self._works: list[Sum] = []

    def backward(self, stage: int) -> bool:
        return False

    def reduce(self, loss: Any, stop: bool) -> None:
        head = self._store.head_values
        head[LOSS], head[STOP] = loss, stop

    def ready(self, p: Parameter) -> None:
        self._left[self._bucket[p]] -= 1
        if self._overlap:
            while self._next < len(self._left) and not self._left[self._next]:
                self._start()

    def poll(self) -> None:
        if self._works:
            self._works[0].poll()

    def finish(self) -> None:
        """Starts what is left, unused parameters included, and waits for all sums."""
        began, dp = self._recorder.now(), self._buckets[-1].comm
        while self._next < len(self._left):
            self._start()
            if not self._overlap and self._buckets[self._next - 1].comm is dp:
                self._works[-1].wait()
        for work in self._works:
            work.wait()
        self._store.summed()
        self._recorder.add("sums", began)

    def _start(self) -> None:
        store, b = self._store, self._next
        fill_unused(self._members[b])
        if b == len(self._buckets) - 1:
            store.head_values[USED:] = used(store.parameters, store.head_values)
        self._works.append(store.start(self._buckets[b]))
        self._next += 1
