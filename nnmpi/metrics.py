"""Metrics of training: sums over samples."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Metric: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
"""`metric(scores, labels)`, of NumPy arrays: a sum over samples, and what to divide it by.

Both are numbers or arrays of one shape, such as a confusion matrix.
"""

ACCURACY = "accuracy"
"""The name of the metric that every loss of classes has."""


class Share(NamedTuple):
    """A sum over samples, and what to divide it by: numbers or arrays of one shape."""

    total: Any = 0.0
    of: Any = 0.0

    @property
    def mean(self) -> Any:
        """The quotient, a number or an array; 0 of nothing."""
        if np.ndim(self.total) == 0:
            return mean(self.total, self.of)
        return np.divide(self.total, self.of, out=np.zeros_like(self.total), where=self.of != 0)


class Sums(NamedTuple):
    """A loss and metrics as sums over samples, which add up over batches of any size."""

    loss: float = 0.0
    divisor: float = 0.0  # of the loss: the number of samples, or what they weigh
    samples: int = 0
    metrics: Mapping[str, Share] = MappingProxyType({})

    def plus(self, loss: float, divisor: float, samples: int) -> "Sums":
        """The sums with the samples of one more step."""
        return self._replace(
            loss=self.loss + loss, divisor=self.divisor + divisor, samples=self.samples + samples
        )

    @property
    def mean_loss(self) -> float:
        """The loss of a sample."""
        return mean(self.loss, self.divisor)

    @property
    def means(self) -> dict[str, Any]:
        """Each metric, a number or an array."""
        return {name: share.mean for name, share in self.metrics.items()}


def mean(total: float, count: float) -> float:
    """The quotient; 0 of nothing, such as labels that are all ignored."""
    return total / count if count else 0.0


def accuracy(scores: Any, labels: Any) -> tuple[float, float]:
    """The metric of scores (N, C, ...) and labels (N, ...): how many have the largest score."""
    return float((scores.argmax(1) == labels).sum()), float(labels.size)
