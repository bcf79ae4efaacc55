"""Slow ranks, for experiments: they sleep, in multiples of the time that they have computed.

`slowed` wraps the parts of a strategy from outside; a run without slow ranks reads no clock.
"""

import time
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array
from nnmpi.config import Config
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.schedules.delay import Delay

P = ParamSpec("P")
T = TypeVar("T")


class Clock:
    """The processor time of this rank's computation in a step, without its communication."""

    def begin(self) -> None:
        """Starts a step."""
        self._began, self._excluded = time.thread_time(), 0.0

    def seconds(self) -> float:
        """The time since then."""
        return time.thread_time() - self._began - self._excluded

    def exclude(self, f: Callable[P, T]) -> Callable[P, T]:
        """A function that does the same, and whose time does not count."""

        def g(*arguments: P.args, **named: P.kwargs) -> T:
            before = time.thread_time()
            try:
                return f(*arguments, **named)
            finally:
                self._excluded += time.thread_time() - before

        return g


def wait(delay: Delay, step: int, computed: float) -> None:
    """Sleeps, after a step in which this rank has computed for so many seconds."""
    longer = delay.factor(step) - 1
    if longer > 0:
        time.sleep(longer * computed)


def delay_of(config: Config, rank: int, ranks: int) -> Delay:
    """From --slow-rank and --jitter; `ranks` are those that compute."""
    return Delay.of(config.slow_rank, config.jitter, config.seed, rank, ranks)


class SlowSync(GradientSync):
    """A GradientSync that sleeps before it finishes."""

    def __init__(self, sync: GradientSync, clock: Clock, delay: Delay) -> None:
        self._sync, self._clock, self._delay = sync, clock, delay
        for name in ("begin_pass", "reduce", "ready", "poll"):
            setattr(self, name, clock.exclude(getattr(sync, name)))

    def begin(self, step: int) -> None:
        self._sync.begin(step)
        self._step = step
        self._clock.begin()

    def finish(self) -> None:
        wait(self._delay, self._step, self._clock.seconds())
        self._sync.finish()


class TimedStats(NamedTuple):
    """BatchStats whose time does not count."""

    moments: Callable[[Moments, Callable[[Moments], None]], Moments]
    sum: Callable[[Array], Array]


def slowed(
    config: Config, rank: int, ranks: int, sync: GradientSync, stats: BatchStats
) -> tuple[GradientSync, BatchStats]:
    """Wraps the sync and the statistics of a rank that is slowed down by the config."""
    if config.slow_rank is None and config.jitter is None:
        return sync, stats
    clock = Clock()
    timed = TimedStats(clock.exclude(stats.moments), clock.exclude(stats.sum))
    return SlowSync(sync, clock, delay_of(config, rank, ranks)), timed
