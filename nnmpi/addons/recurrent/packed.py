"""Sequences of different lengths packed in one object, as in PyTorch."""

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor


class PackedSequence:
    """Sequences of different lengths, as RNN, LSTM and GRU take and return them.

    data         the elements of all sequences, those of the first positions first, and within a
                 position those of longer sequences first
    batch_sizes  for each position, the number of sequences that are long enough to have it
    """

    def __init__(self, padded: Tensor, lengths: np.ndarray, batch_first: bool) -> None:
        self._padded, self.lengths, self._batch_first = padded, lengths, batch_first

    def padded(self, batch_first: bool) -> Tensor:
        """Returns the sequences padded to the length T of the longest one: (N, T, ...) with
        `batch_first`, else (T, N, ...)."""
        is_same = batch_first == self._batch_first
        return self._padded if is_same else exchanged(self._padded)

    @property
    def sorted_indices(self) -> Tensor:
        """The numbers of the sequences in the order of their lengths, the longest first."""
        return tensor(self._order())

    @property
    def batch_sizes(self) -> Tensor:
        return tensor((self.lengths[None] > np.arange(self.lengths.max())[:, None]).sum(1))

    @property
    def data(self) -> Tensor:
        order = self._order()
        sizes = self.batch_sizes.tolist()
        positions = np.repeat(np.arange(len(sizes)), sizes)
        samples = np.concatenate([order[:size] for size in sizes])
        elements: Tensor = self.padded(False)[positions, samples]
        return elements

    def _order(self) -> np.ndarray:
        return np.argsort(-self.lengths, kind="stable")


def exchanged(x: Tensor) -> Tensor:
    """Returns the tensor with its first two axes exchanged."""
    return x.permute(1, 0, *range(2, x.ndim))
