"""Slow ranks for experiments: they sleep, in multiples of what they have just computed."""

import time
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from nnmpi import keyed
from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array
from nnmpi.nn.passes import Across

P = ParamSpec("P")
T = TypeVar("T")


class Clock:
    """The processor time that a rank computes for, without what ranks do together meanwhile."""

    def begin(self) -> None:
        """A step begins."""
        self._began, self._together = time.thread_time(), 0.0

    def seconds(self) -> float:
        """What it has computed for since then."""
        return time.thread_time() - self._began - self._together

    def beside(self, f: Callable[P, T]) -> Callable[P, T]:
        """The same function, whose time does not count."""

        def g(*arguments: P.args, **named: P.kwargs) -> T:
            before = time.thread_time()
            try:
                return f(*arguments, **named)
            finally:
                self._together += time.thread_time() - before

        return g


class Beside(NamedTuple):
    """An Across, the time of which does not count."""

    statistics: Callable[[Moments, Callable[[Moments], None]], Moments]
    total: Callable[[Array], Array]

    @classmethod
    def of(cls, across: Across, clock: Clock) -> "Beside":
        return cls(clock.beside(across.statistics), clock.beside(across.total))


class Delay:
    """How much longer this rank takes, always and now and then."""

    def __init__(
        self, factor: float, share: float, now_and_then: float, seed: int, rank: int
    ) -> None:
        self._factor, self._share, self._now_and_then = factor, share, now_and_then
        self._key = keyed.key(seed, "jitter", rank)

    @classmethod
    def of(
        cls, slow_rank: str | None, jitter: str | None, seed: int, rank: int, ranks: int
    ) -> "Delay":
        """From what --slow-rank and --jitter say; `ranks` are those that compute."""
        factors = _slow(slow_rank, ranks) if slow_rank else {}
        share, now_and_then = _jitter(jitter) if jitter else (0.0, 1.0)
        return cls(factors.get(rank, 1.0), share, now_and_then, seed, rank)

    def wait(self, step: int, computed: float) -> None:
        """Sleeps, after a step in which this rank has computed for so many seconds."""
        longer = self.factor(step) - 1
        if longer > 0:
            time.sleep(longer * computed)

    def factor(self, step: int) -> float:
        """How many times as long as it computes the rank takes for this step."""
        if not self._share:
            return self._factor
        drawn = keyed.uniform(self._key, np.array([step]), np.array([0]))[0]
        return self._factor * (self._now_and_then if drawn < self._share else 1.0)


def _slow(text: str, ranks: int) -> dict[int, float]:
    factors: dict[int, float] = {}
    for words in text.split(","):
        rank, factor = _two(words, f"slow_rank {words!r}: write it as RANK:FACTOR, such as 2:3")
        if rank not in range(ranks):
            raise ValueError(f"slow_rank {words!r}: the ranks that compute are 0 to {ranks - 1}")
        if rank in factors:
            raise ValueError(f"slow_rank {text!r}: rank {rank:g} is there twice; keep one of them")
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
