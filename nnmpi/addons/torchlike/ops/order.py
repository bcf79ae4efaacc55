"""Ops that sort rows along an axis, or return the index of one element by its place in the order,
which has no gradient. NaNs are the largest elements; of equal elements, the sort keeps the
order."""

from __future__ import annotations

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import sortable


def argsort(a: Array, *, axis: int, descending: bool = False) -> Result:
    """The indices that sort a along `axis`; the sort is stable, and NaNs come last."""
    xp, n, a = xp_of(a), a.shape[axis], sortable(a)
    if not descending:
        return Result(xp.argsort(a, axis=axis, kind="stable"), ())
    order = xp.argsort(xp.flip(a, axis=axis), axis=axis, kind="stable")
    return Result(n - 1 - xp.flip(order, axis=axis), ())


def take_along_axis(a: Array, index: Array, *, axis: int) -> Result:
    """The elements of `a` at `index` along `axis`; no index may occur twice in a row."""
    xp, a_shape = xp_of(a), a.shape

    def vjp(g: Array, out: Array | None) -> Array:
        d = xp.zeros(a_shape, g.dtype)
        xp.put_along_axis(d, index, g, axis=axis)
        return d

    return Result(xp.take_along_axis(a, index, axis=axis), (vjp, vjp))


def kth(a: Array, *, axis: int, keepdims: bool, k: int) -> Result:
    """The index of the k-th smallest element of each row along `axis`, counted from 1."""
    _, ranks = _ordered(a, axis)
    return Result(_back(ranks[..., k - 1], axis, keepdims), ())


def median(a: Array, *, axis: int, keepdims: bool) -> Result:
    """The index of the lower median of each row along `axis`, or of the first NaN."""
    xp, (rows, ranks) = xp_of(a), _ordered(a, axis)
    n = rows.shape[-1]
    _check_not_empty("median", a, axis)
    numbers = (rows == rows).sum(axis=-1, keepdims=True)
    place = xp.where(numbers < n, numbers, (n - 1) // 2)
    return Result(_back(xp.take_along_axis(ranks, place, axis=-1)[..., 0], axis, keepdims), ())


def middle(a: Array) -> Result:
    """The lower median of all elements; equal ones share the gradient."""
    xp, rows = xp_of(a), a.reshape(-1)
    y = xp.take(rows, median(rows, axis=0, keepdims=False).value)

    def vjp(g: Array, out: Array | None) -> Array:
        is_it = (a == y) | ((a != a) & (y != y))
        share = g / is_it.sum().astype(g.dtype)
        return xp.where(is_it, share, xp.zeros_like(share))  # of a NaN too, which 0 times g is

    return Result(y, (vjp,))


def mode(a: Array, *, axis: int, keepdims: bool) -> Result:
    """The last index of the most frequent element of each row; of the smallest, if several are."""
    xp, (rows, ranks) = xp_of(a), _ordered(a, axis)
    n = rows.shape[-1]
    _check_not_empty("mode", a, axis)
    sorted_rows = xp.take_along_axis(rows, ranks, axis=-1)
    equal = sorted_rows[..., 1:] == sorted_rows[..., :-1]
    run = xp.zeros(rows.shape, "int64")  # the number of equal elements before each one
    for i in range(1, n):
        run[..., i] = (run[..., i - 1] + 1) * equal[..., i - 1]
    longest = xp.argmax(run, axis=-1, keepdims=True)
    return Result(_back(xp.take_along_axis(ranks, longest, axis=-1)[..., 0], axis, keepdims), ())


def _ordered(a: Array, axis: int) -> tuple[Array, Array]:
    """Returns the array sorted along an axis, which is last then, and the indices that sort it."""
    xp = xp_of(a)
    rows = xp.moveaxis(sortable(a), axis, -1)
    return rows, xp.argsort(rows, axis=-1, kind="stable")


def _back(index: Array, axis: int, keepdims: bool) -> Array:
    """Turns `index` (..., 1), one index for each row, into the result of an op along an axis: drops
    the last axis, or with `keepdims` moves it to the place `axis`."""
    return xp_of(index).expand_dims(index, axis) if keepdims else index


def _check_not_empty(name: str, a: Array, axis: int) -> None:
    if not a.shape[axis]:
        raise ValueError(f"{name}: shape {a.shape} has no element over axis {axis}")
