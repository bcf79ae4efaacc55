"""Products of matrices, in linear layers.

Weights come after inputs among the arguments. The tape visits later arguments first, so the
all-reduce of a weight gradient starts before the gradient of the input is computed. The vjps of
weights write into `out`, the gradient buffer.

A node keeps the arrays that its vjps close over until they have run. So y is kept only for ReLU,
and x only for the gradient of w. `mlp` must give the bits of `linear` layer by layer, because
users may get either of them (hooks, recording and layers on several ranks use `linear`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result, shared_vjps
from nnmpi.arrays.kernels import linear as kernels
from nnmpi.arrays.kernels.epilogue import relu_gradient
from nnmpi.arrays.kernels.precision import cast, in_one_type, widened_products
from nnmpi.autograd.ops.elementwise import unbroadcast


@widened_products
def matmul(a: Array, b: Array) -> Result:
    """a @ b with NumPy's rules: 1-D arguments are vectors, leading axes broadcast."""
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit: the first must have as many "
            "columns as the second has rows"
        )
    if a.ndim > 2 and b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        _check_batches(a.shape, b.shape)
    xp, (a, b) = xp_of(a), in_one_type(a, b)
    if a.ndim == b.ndim == 2:
        return Result(
            kernels.matmul(a, b),
            (
                lambda g, out: product(g, b.swapaxes(-1, -2), a.dtype, out),
                lambda g, out: product(a.swapaxes(-1, -2), g, b.dtype, out),
            ),
        )
    # vectors become matrices, so that both gradients are products of matrices
    rows, columns = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b

    def full(g: Array) -> Array:
        g = xp.expand_dims(g, -1) if b.ndim == 1 else g
        return xp.expand_dims(g, -2) if a.ndim == 1 else g

    def gradient(left: Array, other: Array, like: Array) -> Array:
        """left @ other, summed over axes broadcast from `like`, and only then rounded."""
        lead = xp.broadcast_shapes(left.shape[:-2], other.shape[:-2])
        types = types_of(like.dtype)
        dtype = types.sums if types.is_mixed and lead != like.shape[:-2] else None
        return cast(unbroadcast(kernels.matmul(left, other, dtype), like.shape), like.dtype)

    return Result(
        kernels.matmul(a, b),
        (
            lambda g, out: gradient(full(g), columns.swapaxes(-1, -2), rows).reshape(a.shape),
            lambda g, out: gradient(rows.swapaxes(-1, -2), full(g), columns).reshape(b.shape),
        ),
    )


def product(a: Array, b: Array, dtype: Any, out: Array | None) -> Array:
    """a @ b of matrices or stacks, in a dtype, in the memory `out` if NumPy can write it there."""
    if type(out) is np.ndarray and a.dtype == b.dtype == out.dtype:
        return np.matmul(a, b, out=out)
    return cast(kernels.matmul(a, b), dtype)


def _check_batches(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raises ValueError unless the axes before the matrices of two shapes broadcast."""
    try:
        np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ValueError(
            f"matmul: shapes {a} and {b} do not fit: the axes before the last two, {a[:-2]} and "
            f"{b[:-2]}, must have equal lengths from the last one on, or length 1"
        ) from None


def check_dtype(name: str, dtype: Any, w: Array) -> None:
    """Raises ValueError unless `dtype` is the dtype of the weight."""
    if dtype != w.dtype:
        raise ValueError(
            f"{name}: {dtype} input for {w.dtype} weights: write x.astype('{w.dtype}')"
        )


def like_weight(x: Array, w: Array) -> Array:
    """x in the dtype of a 16-bit weight, if an earlier op left it wider; otherwise unchanged."""
    types = types_of(w.dtype)
    return x.astype(w.dtype) if types.is_mixed and x.dtype == types.sums else x


def _check_linear(shape: Sequence[int], dtype: Any, w: Array) -> None:
    """Raises ValueError unless inputs of this shape and dtype fit the weight (O, K)."""
    if not shape or shape[-1] != w.shape[1]:
        raise ValueError(
            f"linear: input of shape {tuple(shape)} for a weight of shape {w.shape}: "
            f"the last axis must be {w.shape[1]}"
        )
    if dtype is not w.dtype:
        check_dtype("linear", dtype, w)


def linear(x: Array, w: Array, b: Array | None, *, relu: bool = False) -> Result:
    """x (..., K) @ w (O, K).T + b (O), then ReLU if `relu`, in one pass over the result."""
    x = x if x.dtype is w.dtype else like_weight(x, w)
    lead_shape, dtype, xp = x.shape, x.dtype, xp_of(x)
    _check_linear(lead_shape, dtype, w)
    rows = x if len(lead_shape) == 2 else x.reshape(prod(lead_shape[:-1]), lead_shape[-1])
    y = xp.empty((len(rows), len(w)), dtype)
    kernels.outputs(rows, w, b, y, relu)

    # the tape keeps what the functions below name: shapes, and y only if ReLU needs its signs
    shape, relu_value = y.shape, y if relu else None

    def prepare(g: Array, needs: Sequence[bool]) -> Array:
        g = g.reshape(shape)
        return xp.ascontiguousarray(g) if relu_value is None else relu_gradient(g, relu_value)

    def vjp_x(g: Array, out: Array | None) -> Array:
        dx = xp.empty((len(g), w.shape[1]), w.dtype)
        kernels.gradients(g, w, None, dx, None, None)
        return dx.reshape(lead_shape)

    def vjp_w(g: Array, out: Array | None) -> Array:
        dw = xp.empty(w.shape, w.dtype) if out is None else out
        kernels.gradients(g, w, rows, None, dw, None)
        return dw

    def vjp_b(g: Array, out: Array | None) -> Array:
        db = xp.empty(len(w), w.dtype) if out is None else out
        kernels.gradients(g, w, None, None, None, db)
        return db

    value = y if rows is x else y.reshape(*lead_shape[:-1], shape[1])
    return Result(value, (vjp_x, vjp_w, vjp_b), prepare)


def mlp(x: Array, *parameters: Array, relus: tuple[bool, ...]) -> Result:
    """A chain of linear layers on x (n, K): `parameters` are w and b of each layer, and relus[i] is
    True if layer i ends in ReLU. It gives the bits of `linear` for each layer, in fewer calls."""
    x = x if x.dtype is parameters[0].dtype else like_weight(x, parameters[0])
    ws, bs, xp, dtype = parameters[::2], parameters[1::2], xp_of(x), x.dtype
    shape, ys = x.shape, list[Array]()
    for w in ws:
        _check_linear(shape, dtype, w)
        shape = shape[0], len(w)
        ys.append(xp.empty(shape, dtype))
    kernels.mlp_outputs(x, ws, bs, tuple(ys), relus)
    inside, last = tuple(ys[:-1]), ys[-1] if relus[-1] else None

    def prepare(g: Array, needs: Sequence[bool]) -> list[Array | None]:
        g, gradients = xp.ascontiguousarray(g), list[Array | None]()
        for a, need in zip((x, *parameters), needs, strict=True):
            gradients.append(xp.empty(a.shape, dtype) if need else None)
        dws, dbs = tuple(gradients[1::2]), tuple(gradients[2::2])
        values = *inside, g if last is None else last  # the kernel reads the last one for ReLU only
        kernels.mlp_gradients(g, x, ws, values, relus, gradients[0], dws, dbs)
        return gradients

    return Result(ys[-1], shared_vjps(1 + len(parameters)), prepare)
