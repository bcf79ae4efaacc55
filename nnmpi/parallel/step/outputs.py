"""Outputs: accumulate the outputs of a model in an evaluation, and sum them over ranks."""

from typing import Any, Protocol

import numpy as np

from nnmpi.arrays import backend
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.data import Batch
from nnmpi.metrics import Sums
from nnmpi.parallel.step.objective import Objective, SumRow


class Outputs(Protocol):
    """The interface to accumulate the outputs of a model in an evaluation, on one rank and then
    over all ranks."""

    def add(self, scores: Tensor, batch: Batch) -> None:
        """Adds `scores`, the output of the model for the samples of `batch`, to what this rank has
        accumulated."""

    def clear(self) -> None:
        """Sets the accumulated outputs to zero. Ranks that have computed the same as another rank
        call it before `add_up`, so that the sum over ranks counts each output once."""

    def add_up(self, comm: Comm, all_reduce: SumRow) -> None:
        """Sums the accumulated outputs over all ranks of `comm`, by the function `all_reduce`;
        every rank calls it."""


class LossAndMetrics:
    """Accumulates the loss and metrics of an evaluation as sums in `row`; `add_up` sums them over
    ranks into `sums`."""

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
    """Accumulates the model's outputs for every sample in `array`; outputs computed on other ranks
    are zeros until `add_up`."""

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
