"""Rows of a matrix by their numbers."""

from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result


def embedding(w: Array, *, index: Array, padding: int | None = None) -> Result:
    """w[index]; row `padding` of w gets no gradient."""
    xp, kept = xp_of(w), index.copy()  # the backward pass reads it again

    def vjp(g: Array, out: Array | None) -> Array:
        dw = xp.zeros(w.shape, g.dtype)
        xp.add.at(dw, kept, g)
        if padding is not None:
            dw[padding] = 0
        return dw

    return Result(w[kept], (vjp,))
