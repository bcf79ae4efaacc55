"""Normalisation: batch, layer and group."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result, column_sum


class Moments(NamedTuple):
    """Elements per channel, their mean and the sum of squares about it, (C,) each."""

    n: int
    mean: Array
    m2: Array


class _GradientSums(NamedTuple):
    """A gradient as rows (M, C), and its sums over rows: of g, and of g * xhat.

    `whole` (2 C,): both sums over all samples of the statistics, those of other ranks included;
    None if the gradient of x is not needed or the statistics do not depend on x.
    """

    g: Array
    total: Array
    dot: Array
    whole: Array | None


def _rows(x: Array) -> Array:
    """x (N, C) or (N, C, ...) as rows (M, C): free where memory is channels last."""
    return x if x.ndim == 2 else _channels_last(x).reshape(-1, x.shape[1])


def _channels_last(x: Array) -> Array:
    """x (N, C, ...) as (N, ..., C)."""
    return xp_of(x).moveaxis(x, 1, -1)


def _unrows(rows: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `_rows`: channels-last memory under a logical (N, C, ...) shape."""
    n, c, *rest = shape
    return rows if not rest else xp_of(rows).moveaxis(rows.reshape(n, *rest, c), -1, 1)


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


def batch_norm(
    x: Array,
    w: Array | None,
    b: Array | None,
    *,
    mean: Array,
    var: Array,
    n: int,
    eps: float,
    total: Callable[[Array], Array] = lambda sums: sums,
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

    def prepare(g: Array, needs: Sequence[bool]) -> _GradientSums:
        rows = _rows(g)
        own = column_sum(rows), column_sum(rows * xhat)
        # an all-reduce, so only in the half of the backward pass that computes the gradient of x
        whole = total(xp_of(g).concatenate(own)) if n and needs[0] else None
        return _GradientSums(rows, *own, whole)

    def vjp_x(s: _GradientSums, out: Array | None) -> Array:
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
    shape = x.shape[x.ndim - axes :]
    rows = x.reshape(-1, prod(shape))
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
            lambda g, out: column_sum(g * xhat).reshape(shape),
            lambda g, out: column_sum(g).reshape(shape),
        ),
        lambda g, needs: g.reshape(rows.shape),
    )


def group_norm(x: Array, w: Array | None, b: Array | None, *, groups: int, eps: float) -> Result:
    """x (N, C, ...), each sample normalised over each group of C / groups channels, * w + b.

    All but the passes over x and g is done on numbers of a sample and a channel, (N, 1, C).
    """
    xp, (N, C) = xp_of(x), x.shape[:2]
    positions = prod(x.shape[2:])

    def by_sample(a: Array) -> Array:
        return _rows(a).reshape(N, positions, C)

    def of_groups(means: Array) -> Array:
        """The mean over each group, for each of its channels, of means over positions."""
        shared = means.reshape(N, groups, C // groups).mean(axis=2)
        return xp.repeat(shared, C // groups, axis=1).reshape(N, 1, C)

    def scaled(a: Array) -> Array:
        return a if w is None else a * w

    v = by_sample(x)
    d = v - of_groups(v.mean(axis=1))
    r = 1 / xp.sqrt(of_groups((d * d).mean(axis=1)) + eps)

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[Array, Array, Array]:
        """g, and the means over positions of g and of g * d."""
        rows = by_sample(g)
        return rows, rows.mean(axis=1), (rows * d).mean(axis=1)

    def vjp_x(s: tuple[Array, Array, Array], out: Array | None) -> Array:
        g, total, dot = s
        e, ed = of_groups(scaled(total)), of_groups(scaled(dot))
        dx = g * scaled(r) - d * (ed * r * r * r) - e * r
        return _unrows(dx.reshape(-1, C), x.shape)

    y = d * scaled(r)
    return Result(
        _unrows((y if b is None else y + b).reshape(-1, C), x.shape),
        (
            vjp_x,
            lambda s, out: (s[2] * r[:, 0]).sum(axis=0) * positions,
            lambda s, out: s[1].sum(axis=0) * positions,
        ),
        prepare,
    )
