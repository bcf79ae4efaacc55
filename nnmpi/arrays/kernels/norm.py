"""Normalisation: statistics, values and gradients, a pass over memory each.

Of x (N, P, C), N samples of P positions with C channels, whose statistics are those of each sample
and channel, (N, C). BatchNorm has one sample. Of x (M, K), M rows with statistics of their own:
LayerNorm and RMSNorm.
"""

from functools import partial
from typing import Any

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import column_sum
from nnmpi.arrays.kernels.activations import relu_loop
from nnmpi.arrays.kernels.epilogue import relu_gradient_loop
from nnmpi.arrays.native.table import InOut, Out, kernel


def _sum(x: Array) -> Array:
    """x (N, P, C) summed over positions, and not rounded. A device would round the numbers of a
    product to TF32 where that is allowed."""
    sums = types_of(x.dtype).sums
    if sums != x.dtype or not of(x).is_host:
        return x.sum(axis=1, dtype=sums)
    if len(x) == 1:
        return column_sum(x[0])[None]
    xp = xp_of(x)
    return xp.matmul(xp.ones((1, x.shape[1]), x.dtype), x)[:, 0]


@kernel
def moments_loop(x: Array, mean: Out, m2: Out) -> None:
    """The mean and the sum of squares about it; in two passes, since E[x^2] - E[x]^2 cancels.

    The second pass also corrects the rounding of the first mean. Squares that overflow make the sum
    infinite, so that what is normalised becomes 0, as compiled and in PyTorch; infinity less
    infinity would be NaN.
    """
    xp = xp_of(x)
    n = max(x.shape[1], 1)
    first = _sum(x) / n
    d = x - first[:, None]
    off = _sum(d) / n
    d *= d
    mean[...] = first + off
    m2[...] = _sum(d) - xp.minimum(off * off * n, xp.finfo(m2.dtype).max)


@kernel
def normalise_loop(x: Array, mean: Array, scale: Array, shift: Array | None, y: Out) -> None:
    """(x - mean) * scale + shift (C)."""
    xp_of(x).subtract(x, mean[:, None], out=y)
    y *= scale[:, None]
    if shift is not None:
        y += shift


@kernel
def norm_sums_loop(g: Array, x: Array, mean: Array, total: Out, dot: Out) -> None:
    """The sums of g and of g (x - mean)."""
    total[...] = _sum(g)
    d = x - mean[:, None]
    d *= g
    dot[...] = _sum(d)


@partial(kernel, composed=True)
def normalise_relu_loop(x: Array, mean: Array, scale: Array, shift: Array | None, y: Out) -> None:
    """max of that and 0."""
    normalise_loop(x, mean, scale, shift, y)
    lines = y.reshape(-1, y.shape[-1])
    relu_loop(lines, lines)


@partial(kernel, composed=True)
def norm_relu_sums_loop(
    g: Array, x: Array, y: Array, mean: Array, masked: Out, total: Out, dot: Out
) -> None:
    """The sums of m and m (x - mean), where m, `masked`, is g where y is positive, else 0."""
    relu_gradient_loop(g, y, masked)
    norm_sums_loop(masked, x, mean, total, dot)


@kernel
def norm_gradient_loop(
    g: Array, x: Array, mean: Array, a: Array, b: Array, e: Array, dx: Out
) -> None:
    """g a - (x - mean) b - e."""
    d = x - mean[:, None]
    d *= b[:, None]
    xp_of(x).multiply(g, a[:, None], out=dx)
    dx -= d
    dx -= e[:, None]


@kernel
def channel_scales_loop(m2: Array, n: int, w: Array | None, eps: float, r: Out, scale: Out) -> None:
    """r = 1 / sqrt(m2 / n + eps), scale = r w."""
    r[...] = 1 / xp_of(m2).sqrt(m2 / n + eps)
    scale[...] = r if w is None else r * w


@partial(kernel, composed=True)
def batch_norm_gradient_loop(
    g: Array, x: Array, mean: Array, sums: Array, scale: Array, r: Array, n: int, dx: Out
) -> None:
    """The gradient of x (1, P, C), from the sums (2, C) over n numbers of g and of g (x - mean)."""
    of_g, of_x = sums
    e, b = of_g * scale / n, of_x * r * scale / n * r
    norm_gradient_loop(g, x, mean, scale[None], b[None], e[None], dx)


@kernel
def track_loop(
    mean: InOut, var: InOut, batches: InOut, batch_mean: Array, m2: Array, n: int, share: Any
) -> None:
    """Running statistics take a share of those of n numbers, of one batch more."""
    batches += 1
    for running, new in ((mean, batch_mean), (var, m2 / (n - 1))):
        running *= 1 - share
        running += share * new


@kernel
def layer_norm_loop(
    x: Array, w: Array | None, b: Array | None, eps: float, mean: Out, r: Out, y: Out
) -> None:
    """y = (x - mean) r w + b, with r = 1 / sqrt(var + eps)."""
    xp = xp_of(x)
    mean[...] = x.mean(axis=1, dtype=mean.dtype)
    d = y if y.dtype == mean.dtype else xp.empty(y.shape, mean.dtype)
    xp.subtract(x, mean[:, None], out=d)
    r[...] = 1 / xp.sqrt((d * d).mean(axis=1) + eps)
    d *= r[:, None]
    if w is not None:
        d *= w
    if b is not None:
        d += b
    if d is not y:
        y[...] = d


def _normalised(x: Array, mean: Array, r: Array) -> Array:
    off = x - mean[:, None]
    off *= r[:, None]
    return off


@kernel
def layer_norm_gradient_loop(
    g: Array, x: Array, w: Array | None, mean: Array, r: Array, dx: Out
) -> None:
    """(e - mean(e) - xhat mean(e xhat)) r, with e = g w and xhat = (x - mean) r."""
    xp, xhat = xp_of(x), _normalised(x, mean, r)
    e = g if w is None else g * w
    xhat *= xp.multiply(e, xhat, out=dx).mean(axis=1, keepdims=True)
    xp.subtract(e, e.mean(axis=1, keepdims=True), out=dx)
    dx -= xhat
    dx *= r[:, None]


@kernel
def layer_norm_sums_loop(g: Array, x: Array, mean: Array, r: Array, dw: Out, db: Out) -> None:
    """The gradients of w and b."""
    xhat = _normalised(x, mean, r)
    xhat *= g
    dw[...] = column_sum(xhat)
    db[...] = column_sum(g)


@kernel
def rms_norm_loop(x: Array, w: Array | None, eps: float, r: Out, y: Out) -> None:
    """y = x r w, with r = 1 / sqrt(mean(x^2) + eps)."""
    xp = xp_of(x)
    d = y if y.dtype == r.dtype else xp.empty(y.shape, r.dtype)
    xp.multiply(x, x, out=d, dtype=d.dtype)
    r[...] = 1 / xp.sqrt(d.mean(axis=1) + eps)
    xp.multiply(x, r[:, None], out=d)
    if w is not None:
        d *= w
    if d is not y:
        y[...] = d


@kernel
def rms_norm_gradient_loop(g: Array, x: Array, w: Array | None, r: Array, dx: Out) -> None:
    """e r - x r^3 mean(e x), with e = g w."""
    xp = xp_of(x)
    e = g if w is None else g * w
    shift = xp.multiply(e, x, dtype=r.dtype).mean(axis=1) * r * r * r
    xp.multiply(e, r[:, None], out=dx)
    dx -= x * shift[:, None]


@kernel
def rms_norm_sum_loop(g: Array, x: Array, r: Array, dw: Out) -> None:
    """The gradient of w."""
    dw[...] = xp_of(x).dot(r, xp_of(x).multiply(g, x, dtype=r.dtype))
