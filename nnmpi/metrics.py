"""What is counted while a model trains."""

import time
from typing import NamedTuple


class Sums(NamedTuple):
    """Metrics as sums and a count, so that they add up over batches of any size."""

    loss: float = 0.0
    correct: int = 0
    samples: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """Both together."""
        return Sums(
            self.loss + other.loss, self.correct + other.correct, self.samples + other.samples
        )

    @property
    def mean_loss(self) -> float:
        """Loss per sample."""
        return self.loss / max(self.samples, 1)

    @property
    def accuracy(self) -> float:
        """The share of samples that were right."""
        return self.correct / max(self.samples, 1)


class Stopwatch:
    """Samples per second of training steps alone: neither start-up nor the first step count."""

    def __init__(self) -> None:
        self.seconds, self.samples, self._warm = 0.0, 0, False

    def start(self) -> None:
        """Training goes on from here."""
        self._since = time.perf_counter()

    def lap(self, samples: int) -> None:
        """A step over so many samples has ended."""
        now = time.perf_counter()
        if self._warm:
            self.seconds += now - self._since
            self.samples += samples
        self._warm, self._since = True, now

    @property
    def rate(self) -> float:
        """Samples per second so far; 0 before the second step."""
        return self.samples / self.seconds if self.seconds else 0.0
