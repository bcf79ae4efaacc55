"""Metrics of training: sums over samples, and samples per second."""

import time
from typing import NamedTuple


class Sums(NamedTuple):
    """Metrics as sums over samples, which add up over batches of any size."""

    loss: float = 0.0
    correct: int = 0
    samples: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """The sums over the samples of both."""
        return Sums(
            self.loss + other.loss, self.correct + other.correct, self.samples + other.samples
        )

    @property
    def mean_loss(self) -> float:
        """The loss per sample."""
        return self.loss / max(self.samples, 1)

    @property
    def accuracy(self) -> float:
        """The fraction of samples that were classified correctly."""
        return self.correct / max(self.samples, 1)


class Stopwatch:
    """Samples per second of training steps, without start-up, the first step and evaluations."""

    def __init__(self) -> None:
        self.seconds, self.samples, self._warm = 0.0, 0, False

    def start(self) -> None:
        """Start the time of the next step."""
        self._since = time.perf_counter()

    def lap(self, samples: int) -> None:
        """Record the end of a step over this many samples."""
        now = time.perf_counter()
        if self._warm:
            self.seconds += now - self._since
            self.samples += samples
        self._warm, self._since = True, now

    @property
    def rate(self) -> float:
        """Samples per second so far; 0 before the end of the second step."""
        return self.samples / self.seconds if self.seconds else 0.0
