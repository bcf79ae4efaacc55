"""Reductions over axes, and cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod as product
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import (
    averaged,
    by_float32,
    multiplied,
    summed,
    widened_on_device,
)

Dims = int | tuple[int, ...] | None


def _given(axis: Dims, ndim: int) -> Sequence[int]:
    """The axes to reduce, negative ones as they are; all of them if `axis` is None."""
    return range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _axes(axis: Dims, ndim: int) -> list[int]:
    """The axes to reduce, counted from 0; all of `ndim` axes if `axis` is None."""
    return [k % ndim for k in _given(axis, ndim)]


def kept_shape(shape: tuple[int, ...], axis: Dims) -> tuple[int, ...]:
    """The shape with length 1 at the axes to reduce."""
    axes = _axes(axis, len(shape))
    return tuple(1 if k in axes else n for k, n in enumerate(shape))


def existing(axis: Any, a: Array) -> Any:
    """The axis of a reduction; for a 0-d array, 0 and -1 mean no axis, as in PyTorch."""
    return () if a.ndim == 0 and axis in (0, -1, (0,), (-1,)) else axis


def _signed(a: Array) -> Array:
    """Unsigned integers as int64, in which PyTorch adds them up; others as they are."""
    return a.astype("int64") if a.dtype.kind == "u" else a


def sum(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """The sum over `axis`."""
    xp, axis, a = xp_of(a), existing(axis, a), _signed(a)
    a_shape = a.shape

    def vjp(g: Array, out: Array | None) -> Array:
        return xp.broadcast_to(g.reshape(kept_shape(a_shape, axis)), a_shape)

    return Result(summed(a, axis, keepdims), (vjp,))


def mean(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """The mean over `axis`."""
    xp, axis = xp_of(a), existing(axis, a)
    y = averaged(a, axis, keepdims)
    share, a_shape = y.size / a.size if a.size else 0.0, a.shape

    def vjp(g: Array, out: Array | None) -> Array:
        return xp.broadcast_to(multiplied(g, share).reshape(kept_shape(a_shape, axis)), a_shape)

    return Result(y, (vjp,))


def _squares(a: Array, axis: Dims, ddof: float, keepdims: bool) -> tuple[Array, Array, float]:
    """Returns (the deviations from the mean over `axis`, the sums of their squares, the divisor n -
    ddof or 0 if that is negative), from which a variance is computed."""
    d = a - a.mean(axis=axis, keepdims=True, dtype=types_of(a.dtype).sums)
    total = (d * d).sum(axis=axis, keepdims=keepdims)
    n = a.size // total.size if total.size else 0
    return d, total, n - ddof if n > ddof else 0


def var(a: Array, *, axis: Dims = None, ddof: float = 0, keepdims: bool = False) -> Result:
    """The variance over `axis`; the divisor is n - ddof."""
    axis = existing(axis, a)
    kept, (d, total, divisor) = kept_shape(a.shape, axis), _squares(a, axis, ddof, keepdims)
    y = (total / divisor).astype(a.dtype, copy=False)
    return Result(y, (lambda g, out: d * (g.reshape(kept).astype(d.dtype) * 2 / divisor),))


def std(a: Array, *, axis: Dims = None, ddof: float = 0, keepdims: bool = False) -> Result:
    """The standard deviation over `axis`; its gradient is 0 where the deviation is 0."""
    xp, axis = xp_of(a), existing(axis, a)
    kept, (d, total, divisor) = kept_shape(a.shape, axis), _squares(a, axis, ddof, keepdims)
    y = xp.sqrt(total / divisor)

    def vjp(g: Array, out: Array | None) -> Array:
        per_element = xp.where(y == 0, 0, g / xp.where(y == 0, 1, y))
        return d * (per_element.reshape(kept) / divisor)

    return Result(y.astype(a.dtype, copy=False), (vjp,))


@widened_on_device
def prod(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """The product over `axis`, whose gradient is right with zeros too."""
    xp, axis, a = xp_of(a), existing(axis, a), _signed(a)
    y = a.prod(axis=axis, keepdims=keepdims)

    def vjp(g: Array, out: Array | None) -> Array:
        rows, back = _as_rows(a, axis)
        others = _before(rows) * xp.flip(_before(xp.flip(rows, axis=1)), axis=1)
        return back(others) * g.reshape(kept_shape(a.shape, axis))

    return Result(y, (vjp,))


def _as_rows(a: Array, axis: Dims) -> tuple[Array, Any]:
    """Returns (a as rows that run over `axis`, a function from such rows to the shape of a)."""
    reduced = _axes(axis, a.ndim)
    order = [k for k in range(a.ndim) if k not in reduced] + reduced
    moved = a.transpose(order)
    length = product(a.shape[k] for k in reduced)
    inverse = sorted(range(a.ndim), key=order.__getitem__)
    rows = moved.reshape(product(moved.shape[: a.ndim - len(reduced)]), length)
    return rows, lambda matrix: matrix.reshape(moved.shape).transpose(inverse)


def _before(rows: Array) -> Array:
    """The exclusive cumulative product of each row: at each place, that of the elements before."""
    xp = xp_of(rows)
    ones = xp.ones_like(rows[:, :1])
    return xp.cumprod(xp.concatenate([ones, rows[:, :-1]], axis=1), axis=1)


@widened_on_device
def cumsum(a: Array, *, axis: int) -> Result:
    """The cumulative sum along `axis`."""
    xp, a = xp_of(a), _signed(a)
    if a.ndim == 0:
        return Result(xp.cumsum(a.reshape(1)).reshape(()), (lambda g, out: g,))

    def vjp(g: Array, out: Array | None) -> Array:
        return xp.flip(xp.cumsum(xp.flip(g, axis=axis), axis=axis), axis=axis)

    return Result(xp.cumsum(a, axis=axis), (vjp,))


def _min_or_max(
    name: str, a: Array, axis: Dims, keepdims: bool, nan_has_gradient: bool = False
) -> Result:
    """The largest or smallest element over `axis`; equal ones share the gradient, as in PyTorch.
    Where it is NaN, NaNs share it with `nan_has_gradient`, else all gradients are NaN."""
    xp, axis = xp_of(a), existing(axis, a)
    check_not_empty(name[1:], a, axis)
    kept = kept_shape(a.shape, axis)
    y = by_float32(partial(getattr(xp, name), axis=axis, keepdims=keepdims), a)

    def share(g: Array, a: Array, y: Array) -> Array:
        y = y.reshape(kept)
        hit = (a == y).astype(a.dtype)
        if nan_has_gradient:
            hit += (a != a) & (y != y)
        with np.errstate(divide="ignore", invalid="ignore"):  # no element is equal to NaN
            return hit * (g.reshape(kept) / summed(hit, axis, keepdims=True))

    return Result(y, (lambda g, out: by_float32(share, g, a, y),))


def check_not_empty(name: str, a: Array, axis: Dims) -> None:
    """Raises ValueError if a reduced axis has no elements; NumPy refuses a missing axis."""
    if not a.size and 0 in [a.shape[k] for k in _given(axis, a.ndim) if -a.ndim <= k < a.ndim]:
        raise ValueError(f"{name}: shape {a.shape} has no element over axis {axis}")


def max(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """The largest element over `axis`; NaNs share its gradient."""
    return _min_or_max("amax", a, axis, keepdims, nan_has_gradient=True)


def min(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """The smallest element over `axis`; NaNs share its gradient."""
    return _min_or_max("amin", a, axis, keepdims, nan_has_gradient=True)


def amax(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """The largest element over `axis`; if that is NaN, all gradients are NaN."""
    return _min_or_max("amax", a, axis, keepdims)


def amin(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """The smallest element over `axis`; if that is NaN, all gradients are NaN."""
    return _min_or_max("amin", a, axis, keepdims)
