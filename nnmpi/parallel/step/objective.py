"""Objective: the training loss, as a sum over samples, and the metrics of an evaluation. Outputs:
accumulate what a model returns in an evaluation, and sum it over ranks."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import types_of
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.data import Batch
from nnmpi.metrics import ACCURACY, Metric, MetricSum, Sums
from nnmpi.nn.losses import ClassLoss
from nnmpi.parallel.agreement import gather_objects

SumRow: TypeAlias = Callable[[np.ndarray], object]

Row: TypeAlias = list[np.ndarray]
"""A list of arrays, each summed over samples (see `Objective.evaluate`)."""

ZERO = np.zeros(())
"""A zero, the sum of no arrays: an array of any shape can be added to it."""


class Criterion(Protocol):
    """A loss that sums over samples, and the divisor of its mean."""

    def __call__(self, scores: Tensor, labels: Any, /) -> Tensor:
        """Returns the sum of the losses of samples, given the model's scores and their labels."""

    def divisor(self, target: Any, /) -> float:
        """Returns the divisor by which the sum over samples becomes the mean."""


class SumOfMean:
    """Turns a loss function that returns the mean over samples into one that returns the sum."""

    def __init__(self, function: Callable[[Tensor, Any], Tensor]) -> None:
        self.function = function

    def __call__(self, scores: Tensor, labels: Any, /) -> Tensor:
        """Returns the sum of losses; float labels get the scores' dtype."""
        if not len(labels):  # the mean of no samples may be NaN
            return scores.sum()
        dtype = scores.dtype if labels.dtype.kind == "f" else None
        mean = self.function(scores, backend.of(scores.array).asarray(labels, dtype))
        if not isinstance(mean, Tensor) or mean.size != 1:
            described = f"of shape {mean.shape}" if isinstance(mean, Tensor) else repr(mean)[:60]
            raise ValueError(
                f"the loss returned {type(mean).__name__} {described}: return the mean over the "
                "samples, as a tensor with one element"
            )
        total: Tensor = mean.sum() * len(labels)
        return total

    def divisor(self, target: Any, /) -> float:
        return float(len(target))

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


class Objective:
    """Computes a loss and metrics as sums over samples, which are added up over batches and ranks.

    whole            (scores): returns all scores for metrics, gathered from other ranks
    counts_samples   True on only one of the ranks that have parts of the same samples
    """

    def __init__(
        self,
        loss: Criterion,
        metrics: Mapping[str, Metric],
        whole: Callable[[Tensor], np.ndarray] = Tensor.numpy,
        counts_samples: bool = True,
    ) -> None:
        self.loss, self._metrics, self.whole = loss, dict(metrics), whole
        self._counts_samples = counts_samples
        self._counts_correct = isinstance(loss, ClassLoss) and ACCURACY not in metrics
        self._names = (*[ACCURACY] * self._counts_correct, *metrics)

    def empty_row(self) -> Row:
        """Returns a row, as of `evaluate`, for no samples: all sums are 0."""
        return [np.zeros(3), *[ZERO] * len(self._names)]

    def evaluate(self, scores: Tensor, labels: np.ndarray) -> Row:
        """Returns a row of sums for some samples, to which rows of others can be added.

        [loss, divisor, samples] | (sum, count) of each metric, stacked
        """
        row = self.empty_row()
        if self._counts_correct:
            assert isinstance(self.loss, ClassLoss)
            loss, *correct = self.loss.evaluate(scores, labels)
            row[1] = np.array(correct)
        else:
            loss = self.loss(scores, labels).item()
        samples = len(labels) * self._counts_samples
        row[0] = np.array([loss, self.loss.divisor(labels), samples])
        if self._metrics and len(labels):
            gathered = self.whole(scores)
            shares = [_share(name, m(gathered, labels)) for name, m in self._metrics.items()]
            row[len(row) - len(shares) :] = shares
        return row

    def sums(self, row: Row, comm: Comm, all_reduce: SumRow) -> Sums:
        """Adds up the rows of all ranks by `all_reduce`; every rank calls it. Ranks without samples
        do not know the shapes of metrics, so these are gathered first."""
        shapes: list[tuple[int, ...]] = [(3,), *[(2,)] * self._counts_correct]
        if self._metrics:
            shapes = self._shapes(gather_objects(comm, [sums.shape for sums in row]))
        parts = map(np.broadcast_to, row, shapes)
        flat = np.concatenate([part.ravel() for part in parts])
        all_reduce(flat)
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        (loss, divisor, samples), *rest = map(np.reshape, np.split(flat, ends), shapes)
        shares = (MetricSum(*(x.tolist() if x.ndim == 1 else x)) for x in rest)
        named = dict(zip(self._names, shares, strict=True))
        return Sums(float(loss), float(divisor), int(samples), named)

    def add(self, a: Row, b: Row) -> Row:
        """Returns the sum of two rows; raises ValueError if a metric's shapes differ."""
        self._shapes([[sums.shape for sums in row] for row in (a, b)])
        return [x + y for x, y in zip(a, b, strict=True)]

    def _shapes(self, rows: Sequence[Sequence[tuple[int, ...]]]) -> list[tuple[int, ...]]:
        """Returns the shape of each entry, equal in all rows; raises ValueError otherwise."""
        shapes = [{*of_metric} - {()} or {(2,)} for of_metric in zip(*rows, strict=True)]
        for name, of_metric in zip(("loss", *self._names), shapes, strict=True):
            if len(of_metric) > 1:
                both = " and ".join(str(shape[1:]) for shape in sorted(of_metric))
                raise ValueError(
                    f"metric {name} returned sums of the shapes {both}: return one shape, whatever "
                    "samples it gets"
                )
        return [of_metric.pop() for of_metric in shapes]


def widened(scores: Tensor) -> Tensor:
    """Returns 16-bit scores in float32, others unchanged."""
    types = types_of(scores.dtype)
    return scores.astype(types.sums) if types.is_mixed else scores


def _share(name: str, returned: Any) -> np.ndarray:
    """Returns a metric's (sum, count), stacked, or raises ValueError."""
    try:
        total, count = (np.asarray(x, float) for x in returned)
        return np.stack([total, np.broadcast_to(count, total.shape)])
    except (TypeError, ValueError):
        raise ValueError(
            f"metric {name} returned {returned!r:.60}: return a sum over the samples and what to "
            "divide it by, such as (errors.sum(), len(labels)); both may be arrays of one shape"
        ) from None


class Outputs(Protocol):
    """Accumulates a model's outputs in an evaluation, on one rank and over all."""

    def add(self, scores: Tensor, batch: Batch) -> None:
        """Adds the model's output for a batch to what this rank has."""

    def clear(self) -> None:
        """Sets outputs to zero; called before `add_up` on ranks that have computed the same as
        another."""

    def add_up(self, comm: Comm, all_reduce: SumRow) -> None:
        """Sums what all ranks of `comm` have accumulated, by `all_reduce`; every rank calls it."""


class LossAndMetrics:
    """Accumulates loss and metrics in `row`; `add_up` sums them into `sums`."""

    def __init__(self, objective: Objective) -> None:
        self._objective, self.row, self.sums = objective, objective.empty_row(), Sums()

    def add(self, scores: Tensor, batch: Batch) -> None:
        row = self._objective.evaluate(scores, batch.y)
        self.row = self._objective.add(self.row, row)

    def clear(self) -> None:
        self.row = self._objective.empty_row()

    def add_up(self, comm: Comm, all_reduce: SumRow) -> None:
        self.sums = self._objective.sums(self.row, comm, all_reduce)


class AllScores:
    """Accumulates scores of all samples; other ranks' are 0 until `add_up`."""

    def __init__(self, objective: Objective, n: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.array, self._n, self._objective = np.zeros(shape, dtype), n, objective

    def add(self, scores: Tensor, batch: Batch) -> None:
        values = backend.to_host(self._objective.whole(scores))
        if batch.positions is not None:  # scores are (N, C, positions)
            self.array[
                batch.samples[:, None, None], np.arange(values.shape[1])[:, None], batch.positions
            ] = values
        elif len(batch.samples):
            rows = self.array.reshape(self._n, -1)
            rows[batch.samples] = values.reshape(len(batch.samples), -1)

    def clear(self) -> None:
        self.array[...] = 0

    def add_up(self, comm: Comm, all_reduce: SumRow) -> None:
        all_reduce(self.array)
