"""Functions that join tensors along rows and columns, under PyTorch's names."""

from collections.abc import Sequence
from typing import Any

from nnmpi.autograd.functional import at_least_one, concatenate
from nnmpi.autograd.tensor import Tensor


def hstack(tensors: Sequence[Any]) -> Tensor:
    """The tensors joined along axis 1; vectors and numbers along axis 0."""
    joined = [t if t.ndim else t.reshape(1) for t in at_least_one("hstack", tensors)]
    return concatenate(joined, axis=0 if joined[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Tensor:
    """The tensors joined along axis 0, vectors and numbers as rows."""
    given = at_least_one("vstack", tensors)
    return concatenate([t if t.ndim > 1 else t.reshape(1, -1) for t in given], axis=0)
