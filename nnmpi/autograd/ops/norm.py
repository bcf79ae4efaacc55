"""Normalisation: batch and layer."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

from nnmpi.backend import Array, xp_of
from nnmpi.kernels.result import Result
from nnmpi.kernels.sums import column_sum


class Moments(NamedTuple):
    """Elements per channel, their mean and the sum of squares about it, (C,) each."""

    n: int
    mean: Array
    m2: Array


class _Sums(NamedTuple):
    """A gradient as rows (M, C), and its sums over rows: of g, and of g * xhat.

    `whole` (2 C,): both sums over all samples of the statistics, those of other ranks included;
    None if the gradient of x is not needed or the statistics do not depend on x.
    """

    g: Array
    total: Array
    dot: Array
    whole: Array | None


def _rows(x: Array) -> Array:
    """x (N, C) or (N, C, H, W) as rows (M, C): free where memory is channels last."""
    return x if x.ndim == 2 else x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1])


def _unrows(rows: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `_rows`: channels-last memory under a logical NCHW shape."""
    if len(shape) == 2:
        return rows
    n, c, h, w = shape
    return rows.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def _affine(xhat: Array, w: Array | None, b: Array | None) -> Array:
    y = xhat if w is None else xhat * w
    return y if b is None else y + b


def moments(x: Array) -> Moments:
    """The statistics of each channel of x; in two passes, since E[x^2] - E[x]^2 cancels.

    The second pass also corrects the rounding of the first mean.
    """
    rows = _rows(x)
    n = max(len(rows), 1)
    mean = column_sum(rows) / n
    d = rows - mean
    off = column_sum(d) / n
    return Moments(len(rows), mean + off, column_sum(d * d) - off * off * n)


def joined(parts: Sequence[Moments]) -> Moments:
    """The moments of the union of one or more parts.

    They are joined in the order given, so that the same parts give the same bits. An empty part
    changes nothing.
    """
    return reduce(_join, parts)


def _join(a: Moments, b: Moments) -> Moments:
    """The moments of the union of two sets (Chan, Golub and LeVeque).

    n = a.n + b.n,  mean = a.mean + d b.n / n,  M2 = a.M2 + b.M2 + d^2 a.n b.n / n
    with d = b.mean - a.mean: no large numbers cancel.
    """
    if not a.n or not b.n:
        return a if a.n else b
    n, d = a.n + b.n, b.mean - a.mean
    return Moments(n, a.mean + d * (b.n / n), a.m2 + b.m2 + d * d * (a.n * b.n / n))


def _identity(sums: Array) -> Array:
    return sums


def batch_norm(
    x: Array,
    w: Array | None,
    b: Array | None,
    *,
    mean: Array,
    var: Array,
    n: int,
    eps: float,
    total: Callable[[Array], Array] = _identity,
) -> Result:
    """(x - mean) / sqrt(var + eps) * w + b, channel by channel.

    n is how many numbers each statistic was computed from, and 0 if they do not depend on x
    (evaluation). Where n counts samples of other ranks too, `total` sums a 1-D array over these
    ranks. A backward pass calls it once, for the gradient of x: in two halves, it is the half that
    computes this gradient, which is the same one on every rank. The gradients of w and b are those
    of this x alone.
    """
    r = 1 / xp_of(x).sqrt(var + eps)
    xhat = (_rows(x) - mean) * r

    def prepare(g: Array, needs: Sequence[bool]) -> _Sums:
        rows = _rows(g)
        own = column_sum(rows), column_sum(rows * xhat)
        whole = total(xp_of(g).concatenate(own)) if n and needs[0] else None
        return _Sums(rows, *own, whole)

    def vjp_x(s: _Sums, out: Array | None) -> Array:
        d = s.g
        if s.whole is not None:
            C = len(s.total)
            d = d - (xhat * s.whole[C:] + s.whole[:C]) / n
        return _unrows(d * (r if w is None else r * w), x.shape)

    return Result(
        _unrows(_affine(xhat, w, b), x.shape),
        (vjp_x, lambda s, out: s.dot, lambda s, out: s.total),
        prepare,
    )


def layer_norm(x: Array, w: Array | None, b: Array | None, *, axes: int, eps: float) -> Result:
    """x normalised over its last `axes` axes, * w + b of their shape."""
    K = 1
    for size in x.shape[x.ndim - axes :]:
        K *= size
    rows = x.reshape(-1, K)
    d = rows - rows.mean(axis=1, keepdims=True)
    r = 1 / xp_of(x).sqrt((d * d).mean(axis=1, keepdims=True) + eps)
    xhat = d * r
    flat_w, flat_b = (None if v is None else v.reshape(-1) for v in (w, b))

    def vjp_x(g: Array, out: Array | None) -> Array:
        e = g if flat_w is None else g * flat_w
        e = e - e.mean(axis=1, keepdims=True) - xhat * (e * xhat).mean(axis=1, keepdims=True)
        return (e * r).reshape(x.shape)

    return Result(
        _affine(xhat, flat_w, flat_b).reshape(x.shape),
        (
            vjp_x,
            lambda g, out: column_sum(g * xhat).reshape(x.shape[x.ndim - axes :]),
            lambda g, out: column_sum(g).reshape(x.shape[x.ndim - axes :]),
        ),
        lambda g, needs: g.reshape(rows.shape),
    )
