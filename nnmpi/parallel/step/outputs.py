"""Outputs: what an evaluation keeps of what the model returns, and adds up over ranks."""

from typing import Any, Protocol

import numpy as np

from nnmpi.arrays import backend
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.data import Batch
from nnmpi.metrics import Sums
from nnmpi.parallel.step.objective import Objective, SumRow


class Outputs(Protocol):
    """An accumulator of the outputs of an evaluation, which adds up over ranks."""

    def add(self, scores: Tensor, batch: Batch) -> None:
        """Takes the scores of a batch."""

    def clear(self) -> None:
        """Keeps nothing: another rank has the same."""

    def add_up(self, comm: Comm, all_reduce: SumRow) -> None:
        """Adds up what the ranks keep; every rank calls it."""


class Measured:
    """The row of all outputs (see Objective), and in the end what it says."""

    def __init__(self, objective: Objective) -> None:
        self._objective, self.row, self.sums = objective, objective.nothing(), Sums()

    def add(self, scores: Tensor, batch: Batch) -> None:
        row = self._objective.evaluate(scores, batch.y)
        self.row = self._objective.plus(self.row, row)

    def clear(self) -> None:
        self.row = self._objective.nothing()

    def add_up(self, comm: Comm, all_reduce: SumRow) -> None:
        self.sums = self._objective.sums(self.row, comm, all_reduce)


class AllScores:
    """The whole scores of every sample; zeros where another rank has them."""

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
