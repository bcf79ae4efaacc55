"""What a server knows of its workers: how far each is, who may go on, and when an epoch is over."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from nnmpi.parallel.server.exchange import Answer, Ask
from nnmpi.parallel.server.topology import Totals


class Book:
    """Clocks and counts; nothing here knows messages or parameters.

    clocks[w]     pushes of worker w so far, in all epochs
    version       optimizer steps so far
    staleness[w]  how often so many of them lay between what w computed from and its push
    """

    def __init__(self, workers: int, bound: float) -> None:
        self.clocks, self._bound = [0] * workers, bound
        self.version, self._pulled = 0, [0] * workers
        self.staleness: list[Counter[int]] = [Counter() for _ in range(workers)]

    def begin(self, pushes: int) -> None:
        """An epoch of so many pushes, of which the first of each worker is promised to it."""
        self._budget, self._granted = pushes, len(self.clocks)
        self.totals, self.stop, self._ends = Totals(), False, False
        self._active, self._waits = set(range(len(self.clocks))), dict[int, bool]()

    @property
    def step(self) -> int:
        """That of the last push, as workers in step would count it, whoever has made it."""
        return (sum(self.clocks) - 1) // len(self.clocks)

    @property
    def is_over(self) -> bool:
        """Whether no worker will make another step in this epoch."""
        return not self._active

    def started(self, w: int) -> None:
        """Worker w wants to begin the epoch."""
        self._waits[w] = True

    def pushed(self, w: int, ask: Ask) -> None:
        """A gradient of worker w has come, and w waits to go on."""
        self.clocks[w] += 1
        pushes, samples, loss, skipped = self.totals
        self.totals = Totals(pushes + 1, samples + int(ask.samples), loss + ask.loss, skipped)
        self.stop = self.stop or ask.stop > 0
        self._ends = self._ends or self.stop or not math.isfinite(self.totals.loss)
        self._waits[w] = False

    def moved(self, workers: Iterable[int], made: bool | None) -> None:
        """What they have pushed is a step, or was not finite; None: there was nothing."""
        for w in workers:
            self.staleness[w][self.version - self._pulled[w]] += 1
        self.version += made is True
        self.totals = self.totals._replace(skipped=self.totals.skipped + (made is False))

    def left(self, w: int, stop: bool) -> None:
        """Worker w is done with this epoch: nobody waits for it any more."""
        self._active.discard(w)
        self.stop = self.stop or stop

    def answers(self) -> Iterator[tuple[int, Answer]]:
        """What those hear that wait and are not too far ahead."""
        slowest = min((self.clocks[w] for w in self._active), default=0)
        ready = [w for w in self._waits if self.clocks[w] - slowest <= self._bound]
        for w in ready:
            go = self._waits.pop(w) or self._grant()
            self._pulled[w] = self.version
            yield w, self.answer(go)

    def answer(self, go: bool) -> Answer:
        """What a worker hears now."""
        return Answer(go, self.stop, *self.totals)

    def _grant(self) -> bool:
        """Whether there is one push more to make."""
        if self._ends or self._granted >= self._budget:
            return False
        self._granted += 1
        return True
