"""Normalisation: batch, layer, root-mean-square and group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import PlacedGradients, Result
from nnmpi.arrays.kernels import norm as kernels


class Moments(NamedTuple):
    """The statistics of a batch: n, the number of values of each channel, their mean (C,), and the
    sum of their squared deviations from it (C,)."""

    n: int
    mean: Array
    m2: Array


class _GradientSums(NamedTuple):
    """The gradient of BatchNorm's output, and its sums.

    g             the gradient as rows (1, M, C)
    dw, db        the gradients of weight and bias, (C,)
    global_sums   (2 C,): the sums of g and of g (x - mean) over the rows of all ranks that share
                  statistics; None if the gradient of x is not needed or the statistics do not
                  depend on x
    """

    g: Array
    dw: Array
    db: Array
    global_sums: Array | None


def _rows(x: Array) -> Array:
    """Returns x (N, C, ...) as a matrix of rows (M, C): a view if x is channels-last in memory."""
    return x if x.ndim == 2 else xp_of(x).moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def _unrows(rows: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `_rows`: an array of shape (N, C, ...) in channels-last memory."""
    n, c, *rest = shape
    return rows if not rest else xp_of(rows).moveaxis(rows.reshape(n, *rest, c), -1, 1)


def _by_sample(x: Array) -> Array:
    """Returns x (N, C, ...) as (N, positions, C): a view if x is channels-last in memory."""
    return _rows(x).reshape(len(x), prod(x.shape[2:]), x.shape[1])


def moments(x: Array, running: Sequence[Any] = ()) -> Moments:
    """The moments of each channel of x: count, mean and sum of squared deviations. Those in
    `running`, the last arguments of `tracked_moments_loop`, move towards them."""
    rows = _rows(x)
    mean, m2 = (xp_of(x).empty((1, x.shape[1]), types_of(rows.dtype).sums) for _ in range(2))
    loop = kernels.tracked_moments_loop if running else kernels.moments_loop
    loop(rows[None], mean, m2, *running)
    return Moments(len(rows), mean[0], m2[0])


def joined(parts: Sequence[Moments]) -> Moments:
    """Combines the statistics of several sets of values to those of their union, in the given
    order, so that the same parts give the same bits. An empty part changes nothing."""
    return reduce(_join, parts)


def _join(a: Moments, b: Moments) -> Moments:
    """Joins the statistics of two sets of values (Chan, Golub and LeVeque).

    n = a.n + b.n,  mean = a.mean + d b.n / n,  M2 = a.M2 + b.M2 + d^2 a.n b.n / n
    with d = b.mean - a.mean: no large values cancel.
    """
    if not a.n or not b.n:
        return a if a.n else b
    n, d = a.n + b.n, b.mean - a.mean
    return Moments(n, a.mean + d * (b.n / n), a.m2 + b.m2 + d * d * (a.n * b.n / n))


def batch_norm(
    x: Array,
    w: Array | None,
    b: Array | None,
    *,
    mean: Array,
    var: Array,
    n: int,
    eps: float,
    parts: int = 1,
    total: Callable[[Array], Array] = lambda sums: sums,
    relu: bool = False,
) -> Result:
    """Computes BatchNorm, (x - mean) / sqrt(var / parts + eps) * w + b by channel, then ReLU if
    `relu`.

    var may be a sum of squared deviations; `parts` is then the number of values in it. n is the
    number of values behind each statistic, or 0 if the statistics do not depend on x (evaluation).
    If n counts samples of other ranks too, `total` sums a 1-D array over these ranks, once in a
    backward pass, for the gradient of x. Those of w and b are sums over this rank's x.
    """
    xp, rows, shape = xp_of(x), _rows(x)[None], x.shape
    center = mean[None] if n else mean[None].copy()  # running statistics are updated in place
    y, scales = xp.empty_like(rows), xp.empty((2, len(var)), var.dtype)
    kernels.batch_norm_loop(rows, center, var, parts, w, b, eps, relu, scales, y)
    relu_value, (r, scale) = y if relu else None, scales

    def prepare(g: Array, needs: Sequence[bool], memory: Sequence[Any]) -> _GradientSums:
        g, sums = _rows(g)[None], xp.empty((2, len(r)), types_of(g.dtype).sums)
        masked = xp.empty_like(rows) if relu else None
        dw, db = (xp.empty_like(r) if m is None else m for m in memory[1:])
        kernels.batch_norm_sums_loop(g, rows, relu_value, center, r, masked, sums, dw, db)
        # `total` is an all-reduce: every rank has to call it in the same half of the backward
        # pass, so only in the one that computes the gradient of x
        of_all = total(sums.reshape(-1)) if n and needs[0] else None
        return _GradientSums(masked if relu else g, dw, db, of_all)

    def vjp_x(s: _GradientSums, out: Array | None) -> Array:
        if s.global_sums is None:
            return _unrows(s.g[0] * scale, shape)
        dx, sums = xp.empty_like(rows), s.global_sums.reshape(2, -1)
        kernels.batch_norm_gradient_loop(s.g, rows, center, sums, scale, r, n, dx)
        return _unrows(dx[0], shape)

    placed = PlacedGradients(prepare)
    return Result(_unrows(y[0], shape), (vjp_x, lambda s, out: s.dw, lambda s, out: s.db), placed)


def _in_memory(memory: Array | None, shape: Sequence[int], like: Array) -> Array:
    """Returns this memory of a gradient if it has the dtype of `like`, else other such memory."""
    fits = memory is not None and memory.dtype == like.dtype
    return memory if fits else xp_of(like).empty(shape, like.dtype)


def _rows_of(name: str, x: Array, shape: Sequence[int]) -> Array:
    """x (..., *shape) as rows of its last axes; raises ValueError unless x ends in `shape`."""
    if x.shape[x.ndim - len(shape) :] != tuple(shape):
        raise ValueError(f"{name}: input of shape {x.shape}; it must end in {tuple(shape)}")
    return x.reshape(-1, prod(shape))


def layer_norm(
    x: Array, w: Array | None, b: Array | None, *, shape: Sequence[int], eps: float
) -> Result:
    """x normalised over its last axes, which have `shape`, times w plus b of that shape."""
    xp, rows, x_shape = xp_of(x), _rows_of("layer_norm", x, shape), x.shape
    flat_w, flat_b = (None if v is None else v.reshape(-1) for v in (w, b))
    mean, r = (xp.empty(len(rows), types_of(x.dtype).sums) for _ in range(2))
    y = xp.empty(rows.shape, x.dtype)
    kernels.layer_norm_loop(rows, flat_w, flat_b, eps, mean, r, y)

    def prepare(
        g: Array, needs: Sequence[bool], memory: Sequence[Any]
    ) -> tuple[Array, Array, Array]:
        """Returns the output's gradient as a matrix of rows, and those of w and b if needed."""
        g = g.reshape(rows.shape)
        dw, db = (_in_memory(m, shape, r) for m in memory[1:])
        if needs[1] or needs[2]:
            kernels.layer_norm_sums_loop(g, rows, mean, r, dw.reshape(-1), db.reshape(-1))
        return g, dw, db

    def vjp_x(s: tuple[Array, Array, Array], out: Array | None) -> Array:
        dx = xp.empty(rows.shape, rows.dtype)
        kernels.layer_norm_gradient_loop(s[0], rows, flat_w, mean, r, dx)
        return dx.reshape(x_shape)

    return Result(
        y.reshape(x_shape),
        (vjp_x, lambda s, out: s[1], lambda s, out: s[2]),
        PlacedGradients(prepare),
    )


def rms_norm(x: Array, w: Array | None, *, shape: Sequence[int], eps: float) -> Result:
    """x / sqrt(mean(x^2) + eps) over its last axes, which have `shape`, times w of that shape."""
    xp, rows, x_shape = xp_of(x), _rows_of("rms_norm", x, shape), x.shape
    flat_w = None if w is None else w.reshape(-1)
    r, y = xp.empty(len(rows), types_of(x.dtype).sums), xp.empty(rows.shape, x.dtype)
    kernels.rms_norm_loop(rows, flat_w, eps, r, y)

    def vjp_x(g: Array, out: Array | None) -> Array:
        dx = xp.empty(rows.shape, rows.dtype)
        kernels.rms_norm_gradient_loop(g.reshape(rows.shape), rows, flat_w, r, dx)
        return dx.reshape(x_shape)

    def vjp_w(g: Array, out: Array | None) -> Array:
        dw = _in_memory(out, shape, r)
        kernels.rms_norm_sum_loop(g.reshape(rows.shape), rows, r, dw.reshape(-1))
        return dw

    return Result(y.reshape(x_shape), (vjp_x, vjp_w))


def group_norm(
    x: Array, w: Array | None, b: Array | None, *, groups: int, eps: float, silu: bool = False
) -> Result:
    """x (N, C, ...) normalised within each sample and group of C / groups channels, times w plus b,
    then SiLU if `silu`.

    The backward pass keeps x, and with SiLU also the result, which later ops usually keep anyway.
    """
    xp, rows, shape = xp_of(x), _by_sample(x), x.shape
    N, C = shape[:2]
    mean, r = (xp.empty((N, C), types_of(x.dtype).sums) for _ in range(2))
    y = xp.empty_like(rows)
    kernels.group_norm_loop(rows, w, b, groups, eps, silu, mean, r, y)
    value = y if silu else None  # `prepare` would keep y

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[Array | None, Array, Array]:
        """Returns the gradient of x (None if not needed), and two sums over positions for each
        sample and channel: of the gradient g of the normalised values, and of g (x - mean)."""
        total, dot = (xp.empty((N, C), types_of(g.dtype).sums) for _ in range(2))
        dx = xp.empty_like(rows) if needs[0] else None
        given = _by_sample(g), rows, value, w, b, mean, r, groups
        kernels.group_norm_gradient_loop(*given, total, dot, dx)
        return dx, total, dot

    return Result(
        _unrows(y.reshape(-1, C), shape),
        (
            lambda s, out: _unrows(s[0].reshape(-1, C), shape),
            lambda s, out: (s[2] * r).sum(axis=0),
            lambda s, out: s[1].sum(axis=0),
        ),
        prepare,
    )
