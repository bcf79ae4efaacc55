"""Slow ranks, for experiments: they sleep in each step, in proportion to the time they have
computed. `slowed` wraps what sums gradients and BatchNorm statistics; a run without slow ranks
reads no clock."""

import time
from collections.abc import Callable
from contextlib import ContextDecorator
from itertools import compress
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Array
from nnmpi.autograd.ops.norm import Moments
from nnmpi.io.output.messages import EventFields
from nnmpi.nn.passes import BatchStats
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.fitting import Fitting
from nnmpi.parallel.layout import mesh_of
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.schedules.delay import Delay
from nnmpi.schedules.op import Kind, Op


class Clock(ContextDecorator):
    """Measures the processor time that this rank spends computing in a step. As a context manager
    or a decorator, it excludes the enclosed code, such as communication."""

    def begin(self) -> None:
        """Sets the measured time to 0; called at the beginning of a step."""
        self._began = time.thread_time()

    def seconds(self) -> float:
        """Returns the processor time since `begin`, without excluded code."""
        return time.thread_time() - self._began

    def __enter__(self) -> None:
        self._entered = time.thread_time()

    def __exit__(self, *error: object) -> None:
        self._began += time.thread_time() - self._entered


def delay_of(config: Config, rank: int, ranks: int) -> Delay:
    """Returns the Delay of a rank, of `ranks` that compute, by --slow-rank and --jitter."""
    return Delay.of(config.slow_rank, config.jitter, config.seed, rank, ranks)


class SlowSync(GradientSync):
    """A GradientSync that sleeps, before it waits for sums, in proportion to the time computed."""

    def __init__(self, sync: GradientSync, clock: Clock, delay: Delay) -> None:
        self._sync, self._clock, self._delay, self.units = sync, clock, delay, sync.units
        self.note, self.poll = clock(sync.note), clock(sync.poll)  # type: ignore
        self.ops = {kind: clock(do) for kind, do in sync.ops.items()}
        if Kind.FINISH in self.ops:
            self.ops[Kind.FINISH] = self._finish

    def begin(self, step: int) -> None:
        self._sync.begin(step)
        self._step = step
        self._clock.begin()

    def _finish(self, op: Op) -> None:
        longer = self._delay.factor(self._step) - 1
        if longer > 0:
            time.sleep(longer * self._clock.seconds())
        self._clock.begin()
        with self._clock:
            self._sync.ops[Kind.FINISH](op)


class TimedStats(NamedTuple):
    """BatchStats whose exchanges do not count as computing."""

    moments: Callable[[Moments, Callable[[Moments], None]], Moments]
    sum: Callable[[Array], Array]


def slowed(
    config: Config, rank: int, ranks: int, sync: GradientSync, stats: BatchStats
) -> tuple[GradientSync, BatchStats]:
    """Returns `sync` and `stats` wrapped so that this rank is slowed down."""
    clock = Clock()
    timed = TimedStats(clock(stats.moments), clock(stats.sum))
    return SlowSync(sync, clock, delay_of(config, rank, ranks)), timed


def check(config: Config, ranks: int) -> None:
    """Raises ValueError if --slow-rank names a rank that does not exist."""
    delay_of(config, 0, mesh_of(config, ranks).size)


def fitted(config: Config, workers: int) -> dict[str, Any]:
    """Returns {"slow_rank": value} without the ranks that no longer exist; None if no entry is
    left."""
    words = config.slow_rank.split(",")
    ranks = (word.partition(":")[0] for word in words)  # `check` refuses other entries
    exists = (not rank.isdecimal() or int(rank) < workers for rank in ranks)
    return {"slow_rank": ",".join(compress(words, exists)) or None}


def start_fields(a: Arrangement, batches: int) -> dict[str, Any]:
    """Returns --slow-rank and --jitter, if given, as fields of the start event."""
    slowed = {"slow_rank": a.config.slow_rank, "jitter": a.config.jitter}
    return {name: value for name, value in slowed.items() if value}


FIELDS = EventFields(start=start_fields)


CHECKS = Checks(ranks=check)


FITTING = Fitting(options=fitted)
