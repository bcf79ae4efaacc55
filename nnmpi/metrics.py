"""Loss and metrics of training, kept as sums over samples so that batches and ranks add up."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Metric: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
"""`metric(scores, labels)`, of NumPy arrays: returns a sum over samples, and its divisor, numbers
or arrays of one shape, such as a confusion matrix."""

ACCURACY = "accuracy"
"""The name of the metric that every classification loss reports."""


class MetricSum(NamedTuple):
    """A metric as a fraction, whose parts can be added up over batches and ranks: a sum over
    samples (`total`) and its divisor (`of`), which are numbers, or arrays of one shape."""

    total: Any = 0.0
    of: Any = 0.0

    @property
    def mean(self) -> Any:
        """The metric: total / of, a number or an array; 0 where the divisor is 0."""
        if np.ndim(self.total) == 0:
            return mean(self.total, self.of)
        return np.divide(self.total, self.of, out=np.zeros_like(self.total), where=self.of != 0)


class Sums(NamedTuple):
    """A loss and metrics as sums over samples, which add up over batches of any size."""

    loss: float = 0.0
    divisor: float = 0.0  # of the loss: the number of samples, or their weights
    samples: int = 0
    metrics: Mapping[str, MetricSum] = MappingProxyType({})

    def plus(self, loss: float, divisor: float, samples: int) -> "Sums":
        """Returns these sums with those of one more step added: its summed loss, the divisor of its
        mean loss (such as the number of labels that count), and its number of samples."""
        return self._replace(
            loss=self.loss + loss, divisor=self.divisor + divisor, samples=self.samples + samples
        )

    @property
    def mean_loss(self) -> float:
        """The mean loss of a sample."""
        return mean(self.loss, self.divisor)

    @property
    def means(self) -> dict[str, Any]:
        """The value of each metric by name, a number or an array."""
        return {name: share.mean for name, share in self.metrics.items()}


def mean(total: float, count: float) -> float:
    """Returns total / count; 0 if the count is 0, as when all labels are ignored."""
    return total / count if count else 0.0


def accuracy(scores: Any, labels: Any) -> tuple[float, float]:
    """Returns (labels with the largest score, labels), for scores (N, C, ...), labels (N, ...)."""
    return float((scores.argmax(1) == labels).sum()), float(labels.size)
