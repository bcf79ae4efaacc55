"""The op for p-norms of an array over axes, with their gradient."""

from __future__ import annotations

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import widened
from nnmpi.autograd.ops.reduce import Dims, existing, kept_shape


@widened
def p_norm(a: Array, *, p: float, axis: Dims = None, keepdims: bool = False) -> Result:
    """(sum |a|^p)^(1/p) over `axis`, for a finite p > 0; its gradient is 0 where the norm is 0. For
    p = 0, the number of elements that are not 0, whose gradient is 0."""
    xp, axis = xp_of(a), existing(axis, a)
    if p == 0:
        count = xp.asarray((a != 0).sum(axis=axis, keepdims=keepdims), a.dtype)
        return Result(count, (lambda g, out: xp.zeros_like(a),))
    size = xp.absolute(a)
    if p == 2:
        y = xp.sqrt((a * a).sum(axis=axis, keepdims=keepdims))
    else:
        y = (size**p).sum(axis=axis, keepdims=keepdims) ** (1 / p)
    kept = kept_shape(a.shape, axis)

    def vjp(g: Array, out: Array | None) -> Array:
        norm = y.reshape(kept)
        share = xp.where(norm == 0, 0, g.reshape(kept) / xp.where(norm == 0, 1, norm) ** (p - 1))
        if p == 2:
            return a * share
        powers = xp.where(size == 0, 0, xp.where(size == 0, 1, size) ** (p - 1))
        return xp.sign(a) * powers * share

    return Result(y, (vjp,))
