"""Metrics of training: sums over samples, and samples per second."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

Metric: TypeAlias = Callable[[Any, Any], tuple[float, float]]
"""`metric(scores, labels)`, of NumPy arrays: a sum over samples, and what to divide it by."""

ACCURACY = "accuracy"
"""The name of the metric that every loss of classes has."""


class Share(NamedTuple):
    """A sum over samples, and what to divide it by."""

    total: float = 0.0
    of: float = 0.0


class Sums(NamedTuple):
    """A loss and metrics as sums over samples, which add up over batches of any size."""

    loss: float = 0.0
    divisor: float = 0.0  # of the loss: the number of samples, or what they weigh
    samples: int = 0
    metrics: Mapping[str, Share] = MappingProxyType({})

    def plus(self, loss: float, divisor: float, samples: int) -> "Sums":
        """With the samples of one more step."""
        return self._replace(
            loss=self.loss + loss, divisor=self.divisor + divisor, samples=self.samples + samples
        )

    @property
    def mean_loss(self) -> float:
        """The loss of a sample."""
        return mean(self.loss, self.divisor)

    @property
    def means(self) -> dict[str, float]:
        """Each metric."""
        return {name: mean(*share) for name, share in self.metrics.items()}

    @property
    def accuracy(self) -> float:
        """The fraction of samples that were classified correctly."""
        return self.means[ACCURACY]


def mean(total: float, count: float) -> float:
    """Their quotient; 0 of nothing, such as labels that are all ignored."""
    return total / count if count else 0.0


def accuracy(scores: Any, labels: Any) -> tuple[float, float]:
    """The metric of scores (N, C, ...) and labels (N, ...): how many have the largest score."""
    return float((scores.argmax(1) == labels).sum()), float(labels.size)


class Mean:
    """The mean of the numbers that were added; None is no number."""

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0

    def add(self, value: float | None) -> None:
        """Count one more number."""
        if value is not None:
            self._total += value
            self._count += 1

    @property
    def value(self) -> float | None:
        """The mean; None if there is no number."""
        return self._total / self._count if self._count else None


class Laps(NamedTuple):
    """Steps by the clock."""

    seconds: float = 0.0
    samples: int = 0

    @property
    def rate(self) -> float:
        """Samples per second; 0 if no step was measured."""
        return self.samples / self.seconds if self.seconds else 0.0


class Stopwatch:
    """Training steps of the run and of its epoch, without start-up, first step and evaluations.

    Nor does it count what a user does between steps.
    """

    def __init__(self) -> None:
        self.run = self.epoch = Laps()
        self._warm = False

    def start(self) -> None:
        """Start an epoch, and the time of its first step."""
        self.epoch = Laps()
        self.resume()

    def resume(self) -> None:
        """Start the time of a step, after something that is none."""
        self._since = time.perf_counter()

    def lap(self, samples: int) -> None:
        """Record the end of a step over this many samples."""
        now = time.perf_counter()
        if self._warm:
            seconds = now - self._since
            self.run = Laps(self.run.seconds + seconds, self.run.samples + samples)
            self.epoch = Laps(self.epoch.seconds + seconds, self.epoch.samples + samples)
        self._warm, self._since = True, now
