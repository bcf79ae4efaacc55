"""Softmax, and the cross-entropy made of it."""

from nnmpi.autograd.ops.shape import axis_within
from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result, column_sum

REDUCTIONS = ("mean", "sum", "none")


def log_softmax(a: Array, *, axis: int = -1) -> Result:
    """a - log(sum(exp(a))) over `axis`."""
    xp = xp_of(a)
    if not a.size:  # the axis itself may be empty
        return _of_nothing(a, axis)
    s = a - a.max(axis=axis, keepdims=True)
    y = s - xp.log(xp.exp(s).sum(axis=axis, keepdims=True))
    return Result(y, (lambda g, out: g - xp.exp(y) * g.sum(axis=axis, keepdims=True),))


def softmax(a: Array, *, axis: int = -1) -> Result:
    """exp(a) / sum(exp(a)) over `axis`."""
    xp = xp_of(a)
    if not a.size:
        return _of_nothing(a, axis)
    e = xp.exp(a - a.max(axis=axis, keepdims=True))
    y = e / e.sum(axis=axis, keepdims=True)
    return Result(y, (lambda g, out: y * (g - (g * y).sum(axis=axis, keepdims=True)),))


def _of_nothing(a: Array, axis: int) -> Result:
    axis_within(axis, a.ndim)
    return Result(a.copy(), (lambda g, out: g,))


def reduced(losses: Array, reduction: str) -> tuple[Array, float]:
    """The reduced losses, and the factor of the gradient of each."""
    if reduction == "none":
        return losses, 1.0
    scale = 1.0 / max(len(losses), 1) if reduction == "mean" else 1.0
    return losses.sum() * scale, scale


def cross_entropy(z: Array, labels: Array, *, reduction: str = "mean") -> Result:
    """-log(softmax(z))[label] of logits z (n, C) and integer labels (n,).

    Computed on the transpose (C, n): batches are longer than rows, and array
    operations are fastest with a long last axis.
    """
    xp = xp_of(z)
    s = z.T.copy()
    s -= s.max(axis=0)
    e = xp.exp(s)
    total = column_sum(e)
    n = len(labels)
    chosen = labels.astype("int64") * n + xp.arange(n)  # flat indices into s
    y, scale = reduced(xp.log(total) - s.reshape(-1)[chosen], reduction)

    def vjp(g: Array, out: Array | None) -> Array:
        p = e / total
        p.reshape(-1)[chosen] -= 1
        p *= g if reduction == "none" else g * scale
        return p.T

    return Result(y, (vjp,))
