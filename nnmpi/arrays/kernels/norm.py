"""Normalisation: statistics, values and gradients, each in one pass over memory.

BatchNorm and InstanceNorm take x (N, P, C): N samples of P positions with C channels, and
statistics (N, C) for each sample and channel; BatchNorm counts as one sample. LayerNorm and RMSNorm
take x (M, K): M rows, each with its own statistics.
"""

from functools import partial
from typing import Any

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import column_sum
from nnmpi.arrays.kernels.activations import (
    floats_like,
    relu_loop,
    silu_gradient_loop,
    silu_loop,
)
from nnmpi.arrays.kernels.epilogue import relu_gradient_loop
from nnmpi.arrays.native.table import InOut, Out, kernel


def _sum(x: Array) -> Array:
    """Sums x (N, P, C) over positions, in the `sums` dtype (`dtypes.py`)."""
    sums = types_of(x.dtype).sums
    # a device would round the factors of a product to TF32, where that is allowed
    if sums != x.dtype or not of(x).is_host:
        return x.sum(axis=1, dtype=sums)
    if len(x) == 1:
        return column_sum(x[0])[None]
    xp = xp_of(x)
    return xp.matmul(xp.ones((1, x.shape[1]), x.dtype), x)[:, 0]


@kernel
def moments_loop(x: Array, mean: Out, m2: Out) -> None:
    """Writes the mean over positions and m2, the sum of squared deviations from the mean.

    Two passes, since E[x^2] - E[x]^2 cancels; the second one also corrects the rounding of the
    first mean. Squares that overflow make m2 infinite, so that normalised values become 0, as in
    the compiled kernel and in PyTorch; infinity less infinity would be NaN.
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
    """Writes y = (x - mean) * scale + shift for x (N, P, C), with mean, scale (N, C)."""
    xp_of(x).subtract(x, mean[:, None], out=y)
    y *= scale[:, None]
    if shift is not None:
        y += shift


@kernel
def norm_sums_loop(g: Array, x: Array, mean: Array, total: Out, dot: Out) -> None:
    """Writes two sums over positions of x (N, P, C): of g, and of g (x - mean)."""
    total[...] = _sum(g)
    d = x - mean[:, None]
    d *= g
    dot[...] = _sum(d)


@partial(kernel, composed=True)
def normalise_silu_loop(x: Array, mean: Array, scale: Array, shift: Array | None, y: Out) -> None:
    """Writes y = z sigmoid(z), with z = (x - mean) * scale + shift, and shift (C) or None."""
    z, slope = floats_like(x), floats_like(x)
    normalise_loop(x, mean, scale, shift, z)
    silu_loop(z, slope, y)


@kernel
def norm_gradient_loop(
    g: Array, x: Array, mean: Array, a: Array, b: Array, e: Array, dx: Out
) -> None:
    """Writes dx = g a - (x - mean) b - e, the common form of the gradients of normalisations, for g
    and x (N, P, C), and one value of mean, a, b and e per sample and channel."""
    d = x - mean[:, None]
    d *= b[:, None]
    xp_of(x).multiply(g, a[:, None], out=dx)
    dx -= d
    dx -= e[:, None]


@partial(kernel, composed=True)
def batch_norm_loop(
    x: Array, mean: Array, m2: Array, n: int, w: Any, b: Any, eps: float, relu: bool, s: Out, y: Out
) -> None:
    """Writes y = (x - mean) * scale + b for x (1, P, C), then ReLU of it if `relu`.

    s      (2, C): r = 1 / sqrt(m2 / n + eps) and scale = r w, written too
    m2     the sum of squared deviations of n elements of each channel from their mean, (C,)
    w, b   weight and bias (C,), or None
    """
    s[0] = 1 / xp_of(m2).sqrt(m2 / n + eps)
    s[1] = s[0] if w is None else s[0] * w
    normalise_loop(x, mean, s[1:], b, y)
    if relu:
        relu_loop(y[0], y[0])


@partial(kernel, composed=True)
def batch_norm_sums_loop(
    g: Array, x: Array, y: Any, mean: Array, r: Array, masked: Out, sums: Out, dw: Out, db: Out
) -> None:
    """Writes what the gradient of BatchNorm's input x (1, P, C) needs first, from the gradient g of
    its result y, if ReLU follows; if not, y and `masked` are None.

    masked   g where y is positive, and 0 elsewhere: the gradient before ReLU, in the place of g
    sums     (2, C): the sums over rows of g, and of g (x - mean)
    dw, db   the gradients of weight and bias, with r as batch_norm_loop writes it
    """
    if y is not None:
        relu_gradient_loop(g, y, masked)
    norm_sums_loop(g if y is None else masked, x, mean, sums[:1], sums[1:])
    dw[...], db[...] = sums[1] * r, sums[0]


@partial(kernel, composed=True)
def batch_norm_gradient_loop(
    g: Array, x: Array, mean: Array, sums: Array, scale: Array, r: Array, n: int, dx: Out
) -> None:
    """Writes dx, the gradient of BatchNorm's input x (1, P, C), from the gradient g of its output.

    `mean` and r = 1 / sqrt(var + eps) are statistics of n elements a channel, and scale is r times
    the weight. `sums` (2, C) are the sums of g and of g (x - mean) over the n elements, which lie
    on several ranks if ranks share statistics.
    """
    e, b = sums[0] * scale / n, sums[1] * r * scale / n * r
    norm_gradient_loop(g, x, mean, scale[None], b[None], e[None], dx)


def _of_groups(a: Array, groups: int) -> Array:
    """Returns the mean of a (N, C) over each group of channels, for each channel."""
    each = a.shape[1] // groups
    shared = a.reshape(len(a), groups, each).mean(axis=2)
    return xp_of(a).repeat(shared, each, axis=1)


def _scaled(r: Array, w: Array | None) -> Array:
    return r if w is None else r * w


@partial(kernel, composed=True)
def group_norm_loop(
    x: Array,
    w: Array | None,
    b: Array | None,
    groups: int,
    eps: float,
    silu: bool,
    mean: Out,
    r: Out,
    y: Out,
) -> None:
    """Writes y = (x - mean) r w + b for GroupNorm, then SiLU of it if `silu`. Also writes mean and
    r = 1 / sqrt(var + eps) of each group, as (N, C): repeated for the channels of the group.

    The variance of a group is the mean of its channels' variances plus the variance of its
    channels' means: sums of squares of x would cancel.
    """
    xp = xp_of(x)
    means, m2 = xp.empty_like(mean), xp.empty_like(r)
    moments_loop(x, means, m2)
    mean[...] = _of_groups(means, groups)
    offset = means - mean
    r[...] = 1 / xp.sqrt(_of_groups(m2 / max(x.shape[1], 1) + offset * offset, groups) + eps)
    if silu:
        normalise_silu_loop(x, mean, _scaled(r, w), b, y)
    else:
        normalise_loop(x, mean, _scaled(r, w), b, y)


@partial(kernel, composed=True)
def group_norm_gradient_loop(
    g: Array,
    x: Array,
    y: Array | None,
    w: Array | None,
    b: Array | None,
    mean: Array,
    r: Array,
    groups: int,
    total: Out,
    dot: Out,
    dx: Out | None,
) -> None:
    """Writes dx, the gradient of GroupNorm's input x, from the gradient g of its result; dx may be
    None (not needed). Also writes two sums over positions for each sample and channel, from which
    the gradients of w and b are computed.

    y      the value of SiLU, if SiLU follows: then g is the gradient of y, and is first replaced by
           the gradient of SiLU's input
    total  the sum of g
    dot    the sum of g (x - mean)
    """
    scale = _scaled(r, w)
    if y is not None:
        z, g_of_y, g = floats_like(x), g, floats_like(x)
        normalise_loop(x, mean, scale, b, z)
        silu_gradient_loop(g_of_y, z, y, g)
    norm_sums_loop(g, x, mean, total, dot)
    if dx is not None:
        n = max(x.shape[1], 1)
        shift, slope = (_of_groups(_scaled(sums, w), groups) / n for sums in (total, dot))
        norm_gradient_loop(g, x, mean, scale, slope * r * r * r, shift * r, dx)


@kernel
def track_loop(
    mean: InOut, var: InOut, batches: InOut, batch_mean: Array, m2: Array, n: int, share: Any
) -> None:
    """Updates BatchNorm's running `mean` and `var` in place, and counts the batch in `batches`.

    Both move by the fraction `share` towards those of a batch: `batch_mean`, and the variance m2 /
    (n - 1) of n elements per channel, where m2 is the sum of their squared deviations.
    """
    batches += 1
    for running, new in ((mean, batch_mean), (var, m2 / (n - 1))):
        running *= 1 - share
        running += share * new


@partial(kernel, composed=True)
def tracked_moments_loop(
    x: Array, mean: Out, m2: Out, running: InOut, var: InOut, batches: InOut, share: Any
) -> None:
    """Does what moments_loop and then track_loop do, for a batch x (1, P, C) that is all here."""
    moments_loop(x, mean, m2)
    track_loop(running, var, batches, mean[0], m2[0], x.shape[1], share)


@kernel
def layer_norm_loop(
    x: Array, w: Array | None, b: Array | None, eps: float, mean: Out, r: Out, y: Out
) -> None:
    """Writes LayerNorm of each row of x (M, K): y = (x - mean) r w + b, with r = 1 / sqrt(var +
    eps); mean and r too, which the backward pass needs. w and b may be None."""
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
    """Writes the gradient dx of LayerNorm's input from the gradient g of its output: dx = (e -
    mean(e) - xhat mean(e xhat)) r, with e = g w and xhat = (x - mean) r."""
    xp, xhat = xp_of(x), _normalised(x, mean, r)
    e = g if w is None else g * w
    xhat *= xp.multiply(e, xhat, out=dx).mean(axis=1, keepdims=True)
    xp.subtract(e, e.mean(axis=1, keepdims=True), out=dx)
    dx -= xhat
    dx *= r[:, None]


@kernel
def layer_norm_sums_loop(g: Array, x: Array, mean: Array, r: Array, dw: Out, db: Out) -> None:
    """Writes the gradients of LayerNorm's weight and bias, from that of the output."""
    xhat = _normalised(x, mean, r)
    xhat *= g
    dw[...] = column_sum(xhat)
    db[...] = column_sum(g)


@kernel
def rms_norm_loop(x: Array, w: Array | None, eps: float, r: Out, y: Out) -> None:
    """Writes y = x r w and r = 1 / sqrt(mean(x^2) + eps) of each row of x (M, K)."""
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
    """Writes the gradient of RMSNorm for its input, e r - x r^3 mean(e x) per row, with e = g w (g
    without a weight); g is the gradient of the output, r is 1 / rms of each row."""
    xp = xp_of(x)
    e = g if w is None else g * w
    shift = xp.multiply(e, x, dtype=r.dtype).mean(axis=1) * r * r * r
    xp.multiply(e, r[:, None], out=dx)
    dx -= x * shift[:, None]


@kernel
def rms_norm_sum_loop(g: Array, x: Array, r: Array, dw: Out) -> None:
    """Writes dw, the sum over rows of g x r, where r is 1 / rms of each row."""
    dw[...] = xp_of(x).dot(r, xp_of(x).multiply(g, x, dtype=r.dtype))
