"""Objective: the loss that is trained, as a sum over samples, and the metrics of evaluation."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.metrics import ACCURACY, Metric, Share, Sums
from nnmpi.nn.losses import ClassLoss


class Criterion(Protocol):
    """A loss that sums over samples, and what the sum over a whole batch is divided by."""

    def __call__(self, scores: Tensor, labels: Any, /) -> Tensor:
        """The sum of the losses."""

    def divisor(self, target: Any, /) -> float:
        """What the mean divides it by."""


class SumOfMean:
    """A function that returns the mean over the samples it gets, made a sum over them."""

    def __init__(self, function: Callable[[Tensor, Any], Tensor]) -> None:
        self._function = function

    def __call__(self, scores: Tensor, labels: Any, /) -> Tensor:
        """Floating-point labels get the type of the scores; all are on their backend."""
        if not len(labels):  # whose mean may be NaN
            return scores.sum()
        dtype = scores.dtype if labels.dtype.kind == "f" else None
        found = self._function(scores, backend.of(scores.data).asarray(labels, dtype))
        if not isinstance(found, Tensor) or found.size != 1:
            what = f"of shape {found.shape}" if isinstance(found, Tensor) else repr(found)[:60]
            raise ValueError(
                f"the loss returned {type(found).__name__} {what}: return the mean over the "
                "samples, as a tensor with one number"
            )
        total: Tensor = found.sum() * len(labels)
        return total

    def divisor(self, target: Any, /) -> float:
        return float(len(target))


class Objective:
    """A loss and metrics, summed over samples wherever they are.

    `whole` brings all scores of samples to this rank: metrics get them as NumPy arrays.
    """

    def __init__(
        self,
        loss: Criterion,
        metrics: Mapping[str, Metric],
        whole: Callable[[Tensor], np.ndarray] = Tensor.numpy,
    ) -> None:
        self.loss, self._metrics, self._whole = loss, dict(metrics), whole
        self._counts_correct = isinstance(loss, ClassLoss) and ACCURACY not in metrics
        self._names = (*[ACCURACY] * self._counts_correct, *metrics)

    def nothing(self) -> np.ndarray:
        """The row of no samples."""
        return np.zeros(3 + 2 * len(self._names))

    def evaluate(self, scores: Tensor, labels: np.ndarray) -> np.ndarray:
        """The row of these samples, which adds up over samples and ranks.

        loss | divisor | samples | sum and count of each metric
        """
        row = [0.0, self.loss.divisor(labels), len(labels)]
        if self._counts_correct:
            assert isinstance(self.loss, ClassLoss)
            row[0], *correct = self.loss.evaluate(scores, labels)
            row += correct
        else:
            row[0] = self.loss(scores, labels).item()
        whole = self._whole(scores) if self._metrics else None
        for name, metric in self._metrics.items():
            row += _share(name, metric(whole, labels)) if len(labels) else Share()
        return np.array(row)

    def sums(self, row: np.ndarray) -> Sums:
        """What a row says."""
        loss, divisor, samples, *rest = row.tolist()
        shares = map(Share, rest[::2], rest[1::2])
        return Sums(loss, divisor, int(samples), dict(zip(self._names, shares, strict=True)))


def _share(name: str, found: Any) -> Share:
    """What a metric returned; raises ValueError unless it is a sum and a count."""
    try:
        total, count = map(float, found)
    except (TypeError, ValueError):
        raise ValueError(
            f"metric {name} returned {found!r:.60}: return a sum over the samples and what to "
            "divide it by, such as (errors.sum(), len(labels))"
        ) from None
    return Share(total, count)
