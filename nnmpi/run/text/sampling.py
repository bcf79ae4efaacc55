"""Which token comes next: drawn from the scores of a model, by seed and position."""

from typing import NamedTuple, Self

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.options.terms import ABOVE_0, FROM_0, NUMBER_FROM_0, Allowed

UP_TO_1 = Allowed("above 0 and at most 1", lambda p: ABOVE_0.has(p) and p <= 1)
OPTIONS: dict[str, tuple[Allowed, str]] = {
    "temperature": (NUMBER_FROM_0, "what scores are divided by; 0: always the best token"),
    "top_k": (FROM_0, "draw from so many; 0: all"),
    "top_p": (UP_TO_1, "draw from the best that together have this probability"),
    "seed": (FROM_0, "of the draws"),
}
"""The range of each option, and what its flag says of it."""


class Sampling(NamedTuple):
    """How a token is drawn: p ~ exp(scores / temperature), 0 for all but some of the best.

    temperature   0: always the best token
    top_k         so many of the best, and those that score as much as the last of them; 0: all
    top_p         the best ones that together have this probability; at least one
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def checked(self) -> Self:
        """Itself; raises ValueError for numbers that are out of range."""
        for name, value in self._asdict().items():
            within, _ = OPTIONS[name]
            if not within.has(value):
                raise ValueError(f"{name} {value!r:.60} must be {within.words}")
        return self

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Of each token, float64; for a temperature above 0."""
        z: np.ndarray = scores.astype("float64")
        if 0 < self.top_k < len(z):
            z[z < np.partition(z, -self.top_k)[-self.top_k]] = -np.inf
        with np.errstate(over="ignore"):  # e^-inf is 0
            p: np.ndarray = np.exp((z - z.max()) / self.temperature)
        p /= p.sum()
        if self.top_p < 1:
            order = np.argsort(-p, kind="stable")
            better = np.cumsum(p[order]) - p[order]
            p[order[better >= self.top_p]] = 0
            p /= p.sum()
        return p

    def choose(self, scores: np.ndarray, position: int) -> int:
        """The token of a position of the text; the draw depends on it and the seed alone."""
        if not self.temperature:
            return int(scores.argmax())
        sums = np.cumsum(self.probabilities(scores))
        key, at, row = keyed.key(self.seed, "generate"), np.array([position]), np.zeros(1, int)
        draw = keyed.uniform(key, at, row)[0] * sums[-1]
        return int(np.searchsorted(sums, draw, side="right"))
