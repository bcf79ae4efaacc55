"""Candidate: a layout whose time and memory the search may compute."""

from collections.abc import Iterator
from itertools import product
from shlex import quote
from typing import Any, NamedTuple

from nnmpi.options.config import Config
from nnmpi.parallel.mesh import AXES

MOST_UNEVEN = 64
"""The largest number of micro-batches to try if they do not divide a batch evenly."""

SCHEDULES_OF_PLANS = "1f1b", "interleaved", "zb-h1"
"""The schedules that a search tries; others with one update a step are never faster."""


class Candidate(NamedTuple):
    """A layout that the search considers; fields are named as in Config.

    layout  a value of --layout; "" for the ways that --tp chooses
    """

    dp: int = 1
    cp: int = 1
    pp: int = 1
    tp: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    micro_batches: int = 1
    recompute: str = "none"
    layout: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """A dict: name of an option -> its value in a Config with this layout."""
        return {**self._asdict(), "layout": self.layout or None}

    @property
    def replicas(self) -> int:
        """The number of ranks that have the same parameters."""
        return self.dp * self.cp

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of ranks along dp, cp, pp and tp."""
        return self.dp, self.cp, self.pp, self.tp

    @property
    def flags(self) -> str:
        """The options of the layout that differ from their defaults, as command-line flags."""
        plain, words = Candidate(), list[str]()
        for name, value in self._asdict().items():
            if value != getattr(plain, name):
                flag = f"--{name.replace('_', '-')}"
                words.append(flag if value is True else f"{flag} {quote(str(value))}")
        return " ".join(words) or "--dp 1"

    @property
    def pure(self) -> str:
        """The name of the layout's only strategy, such as "zero 3"; "" if it uses several."""
        names = (axis.name for axis in AXES)
        used = [name for name in names if getattr(self, name) > 1]
        is_plain = not self.sequence_parallel and not self.layout
        if len(used) != 1 or not is_plain or (self.zero and used != ["dp"]):
            return ""
        return f"zero {self.zero}" if self.zero else used[0]


def shapes(ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields all (dp, cp, pp, tp) whose product is `ranks`."""
    divisors = sorted(_divisors(ranks))
    for cp, pp, tp in product(divisors, repeat=3):
        if not ranks % (cp * pp * tp):
            yield ranks // (cp * pp * tp), cp, pp, tp


def candidates(config: Config, shape: tuple[int, int, int, int]) -> Iterator[Candidate]:
    """Yields the layouts of this shape (dp, cp, pp, tp) that may be fastest. None recomputes, since
    that only saves memory."""
    dp, cp, pp, tp = shape
    for zero, in_parts, schedule, count in product(
        (0, 1, 2, 3) if dp * cp > 1 else (0,),
        (False, True) if tp > 1 and cp == 1 else (False,),
        SCHEDULES_OF_PLANS if pp > 1 else SCHEDULES_OF_PLANS[:1],
        counts_of_micro_batches(config.batch_size, dp),
    ):
        yield Candidate(*shape, zero, in_parts, schedule, count)


def counts_of_micro_batches(batch: int, dp: int) -> list[int]:
    """Returns numbers of micro-batches to try: powers of 2, and divisors of a replica's samples."""
    samples = batch // dp
    powers = {1 << k for k in range(samples.bit_length()) if 1 << k <= MOST_UNEVEN}
    return sorted(powers | {m for m in _divisors(samples) if not batch % dp})


def _divisors(n: int) -> set[int]:
    small = {k for k in range(1, int(n**0.5) + 1) if not n % k}
    return small | {n // k for k in small}


def recomputed(candidate: Candidate, has_blocks: bool) -> list[Candidate]:
    """Returns the variants of a layout that recompute activations, to try if the layout does not
    fit: they take less memory and more time.

    Recomputing attention alone is not tried, since its kernels keep no scores. Recomputing whole
    stages is not tried if each backward pass directly follows its forward pass: it would change
    nothing.
    """
    if candidate.recompute != "none":
        return []
    ways = ["block"] * has_blocks
    ways += ["stage"] * (candidate.pp > 1 and candidate.micro_batches > 1)
    return [candidate._replace(recompute=how) for how in ways]
