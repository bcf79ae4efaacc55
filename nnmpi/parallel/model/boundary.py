"""Boundary: what crosses between two stages of a model."""

from typing import NamedTuple, Self

import numpy as np

from nnmpi.nn.parameter import inverse


class Boundary(NamedTuple):
    """The arrays that cross: any number of samples of one shape."""

    shape: tuple[int, ...]  # of one sample
    order: tuple[int, ...]  # of the axes in memory, that of samples included
    dtype: str

    @classmethod
    def of(cls, y: np.ndarray) -> Self:
        """That of an array like this one."""
        order = sorted(range(y.ndim), key=lambda k: (-y.strides[k], k))
        return cls(tuple(y.shape[1:]), tuple(order), y.dtype.name)

    def zeros(self, samples: int) -> np.ndarray:
        """An array for so many samples."""
        shape = (samples, *self.shape)
        memory = np.zeros([shape[k] for k in self.order], self.dtype)
        return memory.transpose(inverse(self.order))
