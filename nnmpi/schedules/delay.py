"""Artificial delays of ranks for experiments: which ranks are slow, and at which steps."""

from typing import NamedTuple

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.options.quoting import quoted


class Delay(NamedTuple):
    """How much one rank is slowed down, for experiments with slow ranks. A step takes
    `factor(step)` times as long as its computation:

    always * jitter   in a random share of the steps, `share` (0 to 1)
    always            in all other steps

    `key` chooses these steps, the same ones in each run with the same seed.
    """

    always: float
    share: float
    jitter: float  # the factor at those steps
    key: keyed.Key

    @classmethod
    def of(
        cls, slow_rank: str | None, jitter: str | None, seed: int, rank: int, ranks: int
    ) -> "Delay":
        """Parses --slow-rank and --jitter; returns the delay of one of `ranks` ranks."""
        factors = _slow(slow_rank, ranks) if slow_rank else {}
        share, factor = _jitter(jitter) if jitter else (0.0, 1.0)
        return cls(factors.get(rank, 1.0), share, factor, keyed.key(seed, "jitter", rank))

    def factor(self, step: int) -> float:
        """Returns the factor by which step `step` is slowed down: `always`, or `always * jitter` in
        steps drawn at random."""
        if not self.share:
            return self.always
        drawn = keyed.uniform(self.key, np.array([step]), np.array([0]))[0]
        return self.always * (self.jitter if drawn < self.share else 1.0)

    @property
    def mean(self) -> float:
        """The mean, over many steps, of the factor by which the rank is slowed down."""
        return self.always * (1 + self.share * (self.jitter - 1))


def _slow(text: str, ranks: int) -> dict[int, float]:
    factors: dict[int, float] = {}
    for words in text.split(","):
        named, rank, factor = _pair("slow_rank", words, "RANK:FACTOR, such as 2:3")
        if rank not in range(ranks):
            raise ValueError(f"{named}: the ranks that compute are 0 to {ranks - 1}")
        if rank in factors:
            raise ValueError(
                f"slow_rank {quoted(text)}: rank {rank:g} is named twice; keep one of them"
            )
        factors[int(rank)] = factor
    return factors


def _jitter(words: str) -> tuple[float, float]:
    named, share, factor = _pair("jitter", words, "SHARE:FACTOR, such as 0.1:5")
    if not 0 <= share <= 1:
        raise ValueError(f"{named}: a share of the steps is between 0 and 1")
    return share, factor


def _pair(option: str, words: str, form: str) -> tuple[str, float, float]:
    """Parses the text `words`, NUMBER:FACTOR, of an option; returns the option with its value, for
    error messages, and the two numbers. `form` describes the expected form."""
    named = f"{option} {quoted(words)}"
    try:
        first, factor = map(float, words.split(":"))
    except ValueError:
        raise ValueError(f"{named}: write it as {form}") from None
    if not 1 <= factor <= 1000:
        raise ValueError(f"{named}: the factor must be between 1 and 1000")
    return named, first, factor
