"""Matrix products, and rows of a matrix by their numbers."""

from collections.abc import Sequence
from math import prod
from typing import Any

from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result, column_sum


def matmul(a: Array, b: Array) -> Result:
    """a @ b with NumPy's rules: 1-D arguments are vectors, leading axes broadcast."""
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
    xp = xp_of(a)
    rows, columns = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b

    def full(g: Array) -> Array:
        g = xp.expand_dims(g, -1) if b.ndim == 1 else g
        return xp.expand_dims(g, -2) if a.ndim == 1 else g

    def fold(da: Array, like: Array) -> Array:
        """Sum over the leading axes along which `like` was broadcast."""
        if da.ndim > max(like.ndim, 2):
            da = da.sum(axis=tuple(range(da.ndim - max(like.ndim, 2))))
        lead = zip(da.shape[:-2], like.shape[:-2], strict=False)
        broadcast = tuple(i for i, (m, n) in enumerate(lead) if m != n)
        return (da.sum(axis=broadcast, keepdims=True) if broadcast else da).reshape(like.shape)

    return Result(
        xp.matmul(a, b),
        (
            lambda g, out: fold(xp.matmul(full(g), columns.swapaxes(-1, -2)), a),
            lambda g, out: fold(xp.matmul(rows.swapaxes(-1, -2), full(g)), b),
        ),
    )


def check_dtype(name: str, dtype: Any, w: Array) -> None:
    """Raises ValueError unless an input of this type has that of the weight."""
    if dtype != w.dtype:
        raise ValueError(
            f"{name}: {dtype} input for {w.dtype} weights: write x.astype('{w.dtype}')"
        )


def linear(x: Array, w: Array, b: Array | None, *, relu: bool = False) -> Result:
    """x (..., K) @ w (O, K).T + b (O), then ReLU if `relu`: one pass over the result."""
    if x.ndim == 0 or x.shape[-1] != w.shape[1]:
        raise ValueError(
            f"linear: input of shape {x.shape} for a weight of shape {w.shape}: "
            f"the last axis must be {w.shape[1]}"
        )
    check_dtype("linear", x.dtype, w)
    xp = xp_of(x)
    rows = x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])
    y = xp.dot(rows, w.T)
    if b is not None:
        y += b
    if relu:
        xp.maximum(y, 0, out=y)

    shape, passed = y.shape, y if relu else None  # y itself is kept for ReLU only

    def prepare(g: Array, needs: Sequence[bool]) -> Array:
        g = g.reshape(shape)
        return g if passed is None else g * (passed > 0)

    return Result(
        y if x.ndim == 2 else y.reshape(*x.shape[:-1], w.shape[0]),
        (
            lambda g, out: xp.dot(g, w).reshape(x.shape),
            lambda g, out: xp.dot(g.T, rows, out=out),
            column_sum,
        ),
        prepare,
    )


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
