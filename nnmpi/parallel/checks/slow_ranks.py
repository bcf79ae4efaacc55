"""Slow ranks, for experiments: they sleep, in multiples of the time that they have computed.

`slowed` wraps the parts of a strategy from outside; a run without slow ranks reads no clock.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from nnmpi import keyed
from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array
from nnmpi.config import Config
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.step.executor import GradientSync

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
        """The same function, whose time does not count."""

        def g(*arguments: P.args, **named: P.kwargs) -> T:
            before = time.thread_time()
            try:
                return f(*arguments, **named)
            finally:
                self._excluded += time.thread_time() - before

        return g


class Delay:
    """How much longer this rank takes: always (a factor), and at random steps (a share)."""

    def __init__(self, factor: float, share: float, jitter: float, seed: int, rank: int) -> None:
        self._factor, self._share, self._jitter = factor, share, jitter
        self._key = keyed.key(seed, "jitter", rank)

    @classmethod
    def of(cls, config: Config, rank: int, ranks: int) -> "Delay":
        """From --slow-rank and --jitter; `ranks` are those that compute."""
        factors = _slow(config.slow_rank, ranks) if config.slow_rank else {}
        share, jitter = _jitter(config.jitter) if config.jitter else (0.0, 1.0)
        return cls(factors.get(rank, 1.0), share, jitter, config.seed, rank)

    def wait(self, step: int, computed: float) -> None:
        """Sleeps, after a step in which this rank has computed for so many seconds."""
        longer = self.factor(step) - 1
        if longer > 0:
            time.sleep(longer * computed)

    def factor(self, step: int) -> float:
        """The time that the rank takes for this step, as a multiple of its computation."""
        if not self._share:
            return self._factor
        drawn = keyed.uniform(self._key, np.array([step]), np.array([0]))[0]
        return self._factor * (self._jitter if drawn < self._share else 1.0)


class SlowSync:
    """A GradientSync that sleeps before it finishes."""

    def __init__(self, sync: GradientSync, clock: Clock, delay: Delay) -> None:
        self._sync, self._clock, self._delay = sync, clock, delay
        self._backward = clock.exclude(sync.backward)
        self._reduce = clock.exclude(sync.reduce)
        self._ready = clock.exclude(sync.ready)
        self._poll = clock.exclude(sync.poll)

    def begin(self, step: int) -> None:
        self._sync.begin(step)
        self._step = step
        self._clock.begin()

    def backward(self, stage: int) -> bool:
        return self._backward(stage)

    def reduce(self, loss: Any, stop: bool) -> None:
        self._reduce(loss, stop)

    def ready(self, p: Parameter) -> None:
        self._ready(p)

    def poll(self) -> None:
        self._poll()

    def finish(self) -> None:
        self._delay.wait(self._step, self._clock.seconds())
        self._sync.finish()


class TimedStats(NamedTuple):
    """BatchStats whose time does not count."""

    moments: Callable[[Moments, Callable[[Moments], None]], Moments]
    sum: Callable[[Array], Array]


def slowed(
    config: Config, rank: int, ranks: int, sync: GradientSync, stats: BatchStats
) -> tuple[GradientSync, BatchStats]:
    """The same, but of a rank that is slowed down if the config says so."""
    if config.slow_rank is None and config.jitter is None:
        return sync, stats
    clock = Clock()
    timed = TimedStats(clock.exclude(stats.moments), clock.exclude(stats.sum))
    return SlowSync(sync, clock, Delay.of(config, rank, ranks)), timed


def _slow(text: str, ranks: int) -> dict[int, float]:
    factors: dict[int, float] = {}
    for words in text.split(","):
        rank, factor = _two(words, f"slow_rank {words!r}: write it as RANK:FACTOR, such as 2:3")
        if rank not in range(ranks):
            raise ValueError(f"slow_rank {words!r}: the ranks that compute are 0 to {ranks - 1}")
        if rank in factors:
            raise ValueError(f"slow_rank {text!r}: rank {rank:g} is named twice; keep one of them")
        factors[int(rank)] = _factor("slow_rank", words, factor)
    return factors


def _jitter(words: str) -> tuple[float, float]:
    share, factor = _two(words, f"jitter {words!r}: write it as SHARE:FACTOR, such as 0.1:5")
    if not 0 <= share <= 1:
        raise ValueError(f"jitter {words!r}: a share of the steps is between 0 and 1")
    return share, _factor("jitter", words, factor)


def _factor(name: str, words: str, factor: float) -> float:
    if not 1 <= factor <= 1000:
        raise ValueError(f"{name} {words!r}: the factor must be between 1 and 1000")
    return factor


def _two(words: str, complaint: str) -> tuple[float, float]:
    try:
        first, second = map(float, words.split(":"))
    except ValueError:
        raise ValueError(complaint) from None
    return first, second
