"""Functions for triangles of matrices, under PyTorch's names: `tril` and `triu` keep the elements
of a triangle, `tril_indices` and `triu_indices` return their rows and columns."""

from typing import Any

import numpy as np

from nnmpi.arrays import backend
from nnmpi.autograd.functional import as_tensors, tensor, where
from nnmpi.autograd.tensor import Tensor


def tril(t: Any, diagonal: int = 0) -> Tensor:
    """The lower triangles of matrices (last two axes), with 0 above the diagonal."""
    return _triangle(t, diagonal, True)


def triu(t: Any, diagonal: int = 0) -> Tensor:
    """The upper triangles of matrices (last two axes), with 0 below the diagonal."""
    return _triangle(t, diagonal - 1, False)


def _triangle(t: Any, diagonal: int, lower: bool) -> Tensor:
    """Returns the elements on and below a diagonal if `lower`, otherwise those above it, with 0
    elsewhere; `diagonal` counts from the main one upwards."""
    (t,) = as_tensors(t)
    if t.ndim < 2:
        raise ValueError(f"tril and triu take matrices, not a tensor of shape {t.shape}")
    mask = np.tri(t.shape[-2], t.shape[-1], diagonal, dtype=bool)
    zero = t.dtype.type(0).item()
    return where(backend.of(t._array).asarray(mask == lower), t, zero)


def tril_indices(row: int, col: int, offset: int = 0, *, device: Any = None) -> Tensor:
    """Indices (2, n) of the elements on and below the diagonal `offset` above the main one."""
    return tensor(np.stack(np.tril_indices(row, offset, col)), device=device)


def triu_indices(row: int, col: int, offset: int = 0, *, device: Any = None) -> Tensor:
    """Indices (2, n) of the elements on and above the diagonal `offset` above the main one."""
    return tensor(np.stack(np.triu_indices(row, offset, col)), device=device)
