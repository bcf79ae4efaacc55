"""Slow ranks, for experiments: they sleep, in multiples of the time that they have computed.

`slowed` wraps the parts of a strategy from outside; a run without slow ranks reads no clock.
"""

import time
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import NamedTuple

from nnmpi.arrays.backend import Array
from nnmpi.autograd.ops.norm import Moments
from nnmpi.nn.passes import BatchStats
from nnmpi.options.config import Config
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.schedules.delay import Delay


class Clock(ContextDecorator):
    """The processor time of this rank's computation in a step.

    The time within it, as in communication that it decorates, does not count.
    """

    def begin(self) -> None:
        """Starts a step."""
        self._began = time.thread_time()

    def seconds(self) -> float:
        """The time since then that counts."""
        return time.thread_time() - self._began

    def __enter__(self) -> None:
        self._entered = time.thread_time()

    def __exit__(self, *error: object) -> None:
        self._began += time.thread_time() - self._entered


def delay_of(config: Config, rank: int, ranks: int) -> Delay:
    """From --slow-rank and --jitter; `ranks` are those that compute."""
    return Delay.of(config.slow_rank, config.jitter, config.seed, rank, ranks)


class SlowSync(GradientSync):
    """A GradientSync that sleeps before it finishes."""

    def __init__(self, sync: GradientSync, clock: Clock, delay: Delay) -> None:
        self._sync, self._clock, self._delay = sync, clock, delay
        self.every_pass = sync.every_pass
        self.begin_pass, self.reduce = clock(sync.begin_pass), clock(sync.reduce)  # type: ignore
        self.ready, self.poll = clock(sync.ready), clock(sync.poll)  # type: ignore

    def begin(self, step: int) -> None:
        self._sync.begin(step)
        self._step = step
        self._clock.begin()

    def finish(self) -> None:
        longer = self._delay.factor(self._step) - 1
        if longer > 0:
            time.sleep(longer * self._clock.seconds())
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
    timed = TimedStats(clock(stats.moments), clock(stats.sum))
    return SlowSync(sync, clock, delay_of(config, rank, ranks)), timed
