"""Softmax and cross-entropy over rows of scores."""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import float_type, types_of
from nnmpi.arrays.kernels import Result, column_sum
from nnmpi.arrays.kernels.precision import cast
from nnmpi.arrays.native.table import Out, kernel


@kernel
def softmax_loop(x: Array, y: Out, axis: int) -> None:
    xp = xp_of(x)
    xp.subtract(x, x.max(axis=axis, keepdims=True), out=y)
    xp.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)


@kernel
def softmax_gradient_loop(g: Array, y: Array, dx: Out, axis: int) -> None:
    xp = xp_of(y)
    xp.multiply(g, y, out=dx)
    xp.subtract(g, dx.sum(axis=axis, keepdims=True), out=dx)
    dx *= y


@kernel
def log_softmax_loop(x: Array, y: Out, axis: int) -> None:
    xp = xp_of(x)
    xp.subtract(x, x.max(axis=axis, keepdims=True), out=y)
    y -= xp.log(xp.exp(y).sum(axis=axis, keepdims=True))


@kernel
def log_softmax_gradient_loop(g: Array, y: Array, dx: Out, axis: int) -> None:
    xp = xp_of(y)
    xp.exp(y, out=dx)
    dx *= g.sum(axis=axis, keepdims=True)
    xp.subtract(g, dx, out=dx)


# ---- cross-entropy

NARROW = 32


def like_scores(z: Array) -> Array:
    """Allocates probabilities in the shape (n, C) of z; up to `NARROW` classes as the transpose of
    (C, n): a batch is longer than a row, and NumPy is fastest with a long last axis."""
    xp, (n, C), dtype = xp_of(z), z.shape, float_type(z)
    return xp.empty((C, n), dtype).T if C <= NARROW else xp.empty((n, C), dtype)


@kernel
def cross_entropy_loop(z: Array, labels: Array, scale: float, loss: Out, p: Out, at: Out) -> None:
    """Writes p = softmax(z) of scores z (n, C), and the loss -log(p) at the labels (n,).

    loss  the loss of each row, (n,), or `scale` times their sum, ()
    at    the indices of the labels' elements in the memory of p, (n,)
    """
    xp, (n, C) = xp_of(z), z.shape
    at[...] = labels
    if C <= NARROW and p.flags.f_contiguous:
        at *= n
        at += xp.arange(n)
        s, e = z.T.copy(), p.T
        s -= s.max(axis=0)
        total = column_sum(xp.exp(s, out=e))
        e /= total
    else:
        at += xp.arange(n) * C
        s, e = z - z.max(axis=1, keepdims=True), p
        total = xp.exp(s, out=e).sum(axis=1)
        e /= total[:, None]
    losses = xp.log(total) - s.reshape(-1)[at]
    loss[...] = losses if loss.ndim else losses.sum() * scale


@kernel
def cross_entropy_gradient_loop(p: Array, at: Array, g: Array, scale: float, dz: Out) -> None:
    """Writes the gradient of the scores in cross-entropy: dz = (p - onehot(label)) g scale.

    p is the softmax of the scores, `at` has the index of each label's element in p, and g is the
    gradient of the loss: a value for each row, or one for all.
    """
    (n, C), rows = p.shape, xp_of(p).arange(len(p))
    dz[...] = p
    dz[rows, at // n if C <= NARROW and p.flags.f_contiguous else at - rows * C] -= 1
    dz *= (g[:, None] if g.ndim else g) * scale


# ---- cross-entropy on a device, which has no memory for probabilities

NO_LABEL = -(1 << 63)
"""The value of `ignored` if no label is ignored."""


@kernel
def class_losses_loop(
    z: Array,
    labels: Array,
    scale: float,
    loss: Out,
    sums: Out,
    at: Out,
    ignored: int = NO_LABEL,
    factor: Out | None = None,
) -> None:
    """Writes the cross-entropy of scores z (n, C) and labels (n,), without storing probabilities;
    it is 0 where the label is `ignored`.

    loss    the loss of each row, (n,), or `scale` times their sum, ()
    sums    (2, n): the largest score m of each row, and the logarithm of the sum of e^(z - m)
    at      a copy of the labels, which the backward pass reads
    factor  receives 1 / the number of labels that are not ignored, 0 if there are none, and takes
            the place of `scale` in the sum; or None
    """
    xp = xp_of(z)
    at[...], sums[0] = labels, z.max(axis=1)
    s, kept = z - sums[0][:, None], at != ignored
    sums[1] = xp.log(xp.exp(s).sum(axis=1))
    losses = xp.where(kept, sums[1] - s[xp.arange(len(at)), at * kept], 0)
    if factor is not None:
        count = kept.sum()
        factor[...] = (count > 0) / xp.maximum(count, 1)
    loss[...] = losses if loss.ndim else losses.sum() * (scale if factor is None else factor)


@kernel
def sum_losses_loop(losses: Array, total: Out, scale: float) -> None:
    """Writes the sum of losses (n,) times `scale`, (), with the bits of `class_losses_loop`."""
    losses.sum(out=total)
    total *= scale


@kernel
def class_gradient_loop(
    z: Array,
    at: Array,
    sums: Array,
    g: Array,
    scale: float,
    dz: Out,
    ignored: int = NO_LABEL,
    factor: Array | None = None,
) -> None:
    """Writes the gradient of the scores in cross-entropy: dz = (softmax(z) - onehot(label)) g
    scale, from what `class_losses_loop` has written, and 0 where the label is `ignored`; g has a
    value for each row, or one for all."""
    xp, kept = xp_of(z), at != ignored
    xp.exp(z - sums[0][:, None] - sums[1][:, None], out=dz)
    dz[xp.arange(len(at)), at * kept] -= 1
    dz *= (g[:, None] if g.ndim else g) * (scale if factor is None else factor)
    dz[...] = xp.where(kept[:, None], dz, 0)


def class_losses(
    z: Array, labels: Array, reduction: str, widens: bool, ignored: int = NO_LABEL
) -> Result:
    """Cross-entropy of scores z (n, C) on a device, of the labels that are not `ignored`. The
    backward pass recomputes probabilities. `widens` keeps the loss float32."""
    n, xp, dtype = len(labels), xp_of(z), float_type(z)
    kind, is_mean = types_of(dtype).sums, reduction == "mean"
    loss, sums = xp.empty((n,) if reduction == "none" else (), kind), xp.empty((2, n), kind)
    at, scale = xp.empty(n, "int64"), 1.0 / max(n, 1) if is_mean else 1.0
    factor = xp.empty((), kind) if is_mean and ignored != NO_LABEL else None
    class_losses_loop(z, labels, scale, loss, sums, at, ignored, factor)

    def vjp(g: Array, out: Array | None) -> Array:
        dz = xp.empty_like(z)
        class_gradient_loop(z, at, sums, cast(g, kind), scale, dz, ignored, factor)
        return dz

    return Result(loss if widens else cast(loss, dtype), (vjp,))
