"""Rows of a table by integers, and what equal rows save: each is computed with once.

index   3 1 3 3 1      distinct   1 3        rows of the table, in this order
                       first      1 0        where in the index each is
                       number     1 0 1 1 0  which of them each row is
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.rows import embedding_gradient_loop


class TableGradient:
    """The gradient of rows of a table, summed over equal rows: the table's needs no more.

    rows (U, K) are gradients of the rows `index` (U) of the table; `dense` computes that of each
    row that was looked up, which is needed only where it is added to another one, or asked for.
    """

    __slots__ = ("dtype", "index", "rows", "dense")
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


def dense(g: Any) -> Array:
    """A gradient as an array."""
    return g.dense() if isinstance(g, TableGradient) else g


def embedding(w: Array, *, index: Array, padding: int | None = None) -> Result:
    """w[index]; row `padding` of w gets no gradient."""
    xp, shape, kept = xp_of(w), w.shape, index.copy()  # the backward pass reads it again

    def vjp(g: Any, out: Array | None) -> Array:
        rows, at = (g.rows, g.index) if isinstance(g, TableGradient) else (g, kept)
        dw = xp.zeros(shape, g.dtype)
        embedding_gradient_loop(xp.ascontiguousarray(rows), at, dw)  # NumPy's own is slow
        if padding is not None:
            dw[padding] = 0
        return dw

    return Result(w[kept], (vjp,))


class DistinctRows(NamedTuple):
    """The distinct rows that an index looks up, each once: the arrays of the drawing above."""

    values: Array
    first: Array
    inverse: Array

    def spread(self, rows: Array, out: Array) -> None:
        """Write to `out` (P, C) the one of the rows (U, C) that each is."""
        xp_of(rows).take(rows, self.inverse, 0, out, "clip")  # NumPy copies once more to raise

    def summed(self, g: Array) -> Array:
        """g (P, C) summed over equal rows, (U, C)."""
        sums = xp_of(g).zeros((len(self.values), g.shape[1]), g.dtype)
        embedding_gradient_loop(g, self.inverse, sums)
        return sums


def distinct(index: Array) -> DistinctRows:
    """The distinct integers of an index (P,)."""
    values, first, inverse = np.unique(index, return_index=True, return_inverse=True)
    return DistinctRows(values.astype(np.int64), first, inverse)
