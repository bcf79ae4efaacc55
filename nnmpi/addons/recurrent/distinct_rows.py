"""Distinct rows of a table that is looked up by integers, so that work on equal rows is done once.

index   3 1 3 3 1      distinct   1 3        rows of the table, in this order
                       first      1 0        position of each in the index
                       inverse    1 0 1 1 0  which distinct row each position has
"""

from typing import NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.rows import embedding_gradient_loop


class DistinctRows(NamedTuple):
    """The distinct values of an index, where each first occurs, and the inverse, of np.unique."""

    values: Array
    first: Array
    inverse: Array

    def spread(self, rows: Array, out: Array) -> None:
        """Copies rows (U, C), one for each distinct value, to its positions in `out` (P, C)."""
        xp_of(rows).take(rows, self.inverse, 0, out, "clip")  # mode "raise" would buffer `out`

    def summed(self, g: Array) -> Array:
        """Sums g (P, C), one row for each position, over positions with equal values: (U, C)."""
        sums = xp_of(g).zeros((len(self.values), g.shape[1]), g.dtype)
        embedding_gradient_loop(g, self.inverse, sums)
        return sums


def distinct(index: Array) -> DistinctRows:
    """Finds the distinct integers of an index (P,), and where they occur."""
    values, first, inverse = np.unique(index, return_index=True, return_inverse=True)
    return DistinctRows(values.astype(np.int64), first, inverse)
