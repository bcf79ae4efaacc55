"""What a server counts: how far each worker is, which may go on, and when an epoch is over."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import add, sub
from typing import NamedTuple

from nnmpi.parallel.step.executor import StepResult, StepState


class Totals(NamedTuple):
    """Sums over all workers since an epoch began."""

    pushes: float = 0
    samples: float = 0
    divisor: float = 0  # of the loss
    loss: float = 0
    skipped: float = 0  # updates left out because a number was not finite


class ClockTable:
    """Clocks and counts; it knows neither messages nor parameters.

    clocks[w]     pushes of worker w so far, in all epochs
    version       optimizer steps so far
    staleness[w]  {s: how often s optimizer steps lay between a pull and the push computed from it}
    bound         how many pushes a worker may be ahead of the slowest one before it has to wait
    """

    def __init__(self, workers: int, bound: float) -> None:
        self.clocks, self._bound = [0] * workers, bound
        self.version, self._pulled = 0, [0] * workers
        self.staleness: list[Counter[int]] = [Counter() for _ in range(workers)]

    def begin(self, step: int, pushes: int) -> None:
        """Starts an epoch at this step, of so many pushes; each worker may make one of them."""
        workers = range(len(self.clocks))
        self._step, self._budget, self._granted = step, pushes, len(workers)
        self.totals, self.stop, self._ending = Totals(), False, False
        self._active = set(workers)
        self._waiting = dict[int, bool]()  # workers that wait for a reply: True if granted

    @property
    def step(self) -> int:
        """The step that the last push belongs to: N pushes of N workers count as one."""
        return self._step + int(self.totals.pushes - 1) // len(self.clocks)

    @property
    def is_over(self) -> bool:
        """Whether all workers have ended the epoch."""
        return not self._active

    def started(self, w: int) -> None:
        """Worker w waits to begin the epoch."""
        self._waiting[w] = True

    def pushed(self, w: int, samples: float, divisor: float, loss: float, stop: bool) -> None:
        """Worker w has pushed a gradient, and waits to go on."""
        self.totals = Totals(*map(add, self.totals, (1, samples, divisor, loss, 0)))
        self.clocks[w] += 1
        self.stop = self.stop or stop
        self._ending = self._ending or self.stop or not math.isfinite(self.totals.loss)
        self._waiting[w] = False

    def applied(self, workers: Iterable[int], updated: bool | None) -> None:
        """The pushes of these workers were used: False if skipped, None if they had no samples."""
        for w in workers:
            self.staleness[w][self.version - self._pulled[w]] += 1
        self.version += updated is True
        self.totals = self.totals._replace(skipped=self.totals.skipped + (updated is False))

    def ended(self, w: int, stop: bool) -> None:
        """Worker w has ended the epoch: no other waits for it any more."""
        self._active.discard(w)
        self.stop = self.stop or stop

    def released(self) -> Iterator[tuple[int, bool]]:
        """Workers that wait and are not too far ahead, and whether each is to push again."""
        slowest = min((self.clocks[w] for w in self._active), default=0)
        for w in [w for w in self._waiting if self.clocks[w] - slowest <= self._bound]:
            self._pulled[w] = self.version
            yield w, self._waiting.pop(w) or self._grant()

    def _grant(self) -> bool:
        """Takes one of the pushes that are left in the epoch, if there is one."""
        if self._ending or self._granted >= self._budget:
            return False
        self._granted += 1
        return True


class EpochProgress:
    """Turns totals into results of steps, which add up to the totals.

    N pushes of N workers count as one step, whichever workers made them.
    """

    def __init__(self, start: StepState, batches: int, workers: int) -> None:
        self._start, self._batches, self._workers = start, batches, workers
        self._totals, self._state = Totals(), start

    def results(self, now: Totals, ended: bool = False, stop: bool = False) -> Iterator[StepResult]:
        """What is new since the last call: one result, more of them if updates were skipped.

        At the end of an epoch, a step that lacks pushes counts as well.
        """
        new, state = Totals(*map(sub, now, self._totals)), self._state
        whole, rest = divmod(int(now.pushes), self._workers)
        self._totals, self._state = now, self._after(whole + (ended and rest > 0))
        for _ in range(int(new.skipped) - 1):
            yield StepResult(state, 0, 0.0, 0.0, False, False)
        samples = int(new.samples)
        yield StepResult(self._state, samples, new.divisor, new.loss, stop, new.skipped == 0)

    def _after(self, steps: int) -> StepState:
        epochs, batch = divmod(self._start.batch + steps, self._batches)
        return StepState(self._start.step + steps, self._start.epoch + epochs, batch)
