"""Outputs: accumulate what a model returns in an evaluation, and add it up over ranks."""

from typing import Any, Protocol

import numpy as np

from nnmpi.arrays import backend
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.data import Batch
from nnmpi.metrics import Sums
from nnmpi.parallel.step.objective import Objective, SumRow


class Outputs(Protocol):
    """An accumulator of the outputs of an evaluation, whose content adds up over ranks."""

    def add(self, scores: Tensor, batch: Batch) -> None:
        """Adds the scores of a batch."""

    def clear(self) -> None:
        """Clears the content, because another rank has the same."""

    def add_up(self, comm: Comm, all_reduce: SumRow) -> None:
        """Sums what was accumulated over all ranks of `comm`, by `all_reduce`; collective."""


class LossAndMetrics:
    """The loss and metrics of an evaluation: `row` accumulates them, and `add_up` makes `sums` of
    it."""

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
    """The scores of every sample; zeros where another rank has them, until `add_up`."""

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
