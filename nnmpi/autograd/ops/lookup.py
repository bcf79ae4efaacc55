"""Rows of a table looked up by integers; their gradient may be summed over equal rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.rows import embedding_gradient_loop


class TableGradient:
    """The gradient of rows that were looked up, summed over lookups of the same row: rows (U, K)
    are those of the rows `index` (U). `dense` returns it with a row for each lookup."""

    __slots__ = ("dense", "dtype", "index", "rows")
    __array_ufunc__ = None  # so that ndarray + this calls __radd__

    def __init__(self, rows: Array, index: Array, dense: Callable[[], Array]) -> None:
        self.rows, self.index, self.dense, self.dtype = rows, index, dense, rows.dtype

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, TableGradient):
            return self.dense() + other
        xp = xp_of(self.rows)
        rows = xp.concatenate([self.rows, other.rows])
        index = xp.concatenate([self.index, other.index])
        return TableGradient(rows, index, lambda: self.dense() + other.dense())

    __radd__ = __add__

    def astype(self, dtype: Any) -> TableGradient:
        """Returns the gradient in another type."""
        rows = self.rows.astype(dtype)
        return TableGradient(rows, self.index, lambda: self.dense().astype(dtype))


def dense(g: Any) -> Array:
    """Returns a gradient as an array; a TableGradient is expanded to one row for each lookup."""
    return g.dense() if isinstance(g, TableGradient) else g


def embedding(w: Array, *, index: Array, padding: int | None = None) -> Result:
    """The rows w[index]; row `padding` of w gets no gradient."""
    # a copy, because the caller may reuse the index's memory before the backward pass
    xp, shape, index_copy = xp_of(w), w.shape, index.copy()

    def vjp(g: Any, out: Array | None) -> Array:
        rows, indices = (g.rows, g.index) if isinstance(g, TableGradient) else (g, index_copy)
        dw = xp.zeros(shape, g.dtype)
        embedding_gradient_loop(xp.ascontiguousarray(rows), indices, dw)  # np.add.at is slow
        if padding is not None:
            dw[padding] = 0
        return dw

    return Result(w[index_copy], (vjp,))
