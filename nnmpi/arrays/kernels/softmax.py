"""Softmax and cross-entropy: rows of scores, of attention too, and the classes of their labels."""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import column_sum, float_type
from nnmpi.arrays.native.table import InOut, Out, kernel


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


# ---- of attention


@kernel
def probabilities_loop(s: InOut, p: Out, lse: Out, later: int) -> None:
    """p = softmax of scores s (..., rows, keys), and the logarithm of its sum, of keys 0 to
    later + i for row i, or of all keys if it is -1; scores of other keys become -inf."""
    xp = xp_of(s)
    if later >= 0:
        hide_later(s, later)
    softmax_loop(s, p, -1)
    lse[...] = s.max(axis=-1) - xp.log(p.max(axis=-1))  # the largest p is e^(s - lse)


@kernel
def scores_gradient_loop(
    s: InOut, dp: InOut, lse: Array, of_rows: Array, scale: float, later: int
) -> None:
    """s become probabilities, as of `probabilities_loop`, and dp, their gradients, those of s:
    scale p (dp - of_rows)."""
    if later >= 0:
        hide_later(s, later)
    s -= lse[..., None]
    xp_of(s).exp(s, out=s)
    softmax_backward(s, dp, of_rows, scale)


def softmax_backward(p: Array, dp: Array, of_rows: Array, scale: float) -> None:
    """dp = scale p (dp - of_rows)."""
    dp -= of_rows[..., None]
    dp *= p
    dp *= scale


def hide_later(s: Array, first: int) -> None:
    """Hides from each query the keys behind its position, `first` and up."""
    xp = xp_of(s)
    rows, keys = s.shape[-2:]
    begin = min(first + 1, keys)  # keys before are seen by all
    later = xp.arange(begin, keys)[None, :] > first + xp.arange(rows)[:, None]
    s[..., begin:] += xp.where(later, -xp.inf, 0).astype(s.dtype)


# ---- cross-entropy

NARROW = 32


def like_scores(z: Array) -> Array:
    """An empty array for `cross_entropy_loop`, in the shape (n, C) of z.

    Up to `NARROW` classes it is a transpose: batches are longer than rows, and array operations are
    fastest with a long last axis.
    """
    xp, (n, C), dtype = xp_of(z), z.shape, float_type(z)
    return xp.empty((C, n), dtype).T if C <= NARROW else xp.empty((n, C), dtype)


@kernel
def cross_entropy_loop(z: Array, labels: Array, scale: float, loss: Out, p: Out, at: Out) -> None:
    """Scores z (n, C) and integers (n,): p = softmax(z), and -log(p) at the labels.

    loss: of each row, (n,), or `scale` times the sum of all, ()
    at (n,): where in the memory of p the labels are
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
    """dz = (p - 1 at the labels) (g scale), g of each row or one for all."""
    dz[...] = p
    d = dz.T if p.shape[1] <= NARROW and p.flags.f_contiguous else dz
    d.reshape(-1)[at] -= 1
    dz *= (g[:, None] if g.ndim else g) * scale


# ---- cross-entropy on a device, which has no memory for probabilities


@kernel
def class_losses_loop(z: Array, labels: Array, scale: float, loss: Out, sums: Out, at: Out) -> None:
    """Scores z (n, C) and integers (n,): `loss` as of `cross_entropy_loop`, and `at` the labels.

    sums (2, n): the largest score m of each row, and the logarithm of the sum of e^(z - m)
    """
    xp = xp_of(z)
    at[...], sums[0] = labels, z.max(axis=1)
    s = z - sums[0][:, None]
    sums[1] = xp.log(xp.exp(s).sum(axis=1))
    losses = sums[1] - s[xp.arange(len(at)), at]
    loss[...] = losses if loss.ndim else losses.sum() * scale


@kernel
def class_gradient_loop(z: Array, at: Array, sums: Array, g: Array, scale: float, dz: Out) -> None:
    """dz = (softmax(z) - 1 at the labels) (g scale), g of each row or one for all."""
    xp = xp_of(z)
    xp.exp(z - sums[0][:, None] - sums[1][:, None], out=dz)
    dz[xp.arange(len(at)), at] -= 1
    dz *= (g[:, None] if g.ndim else g) * scale
