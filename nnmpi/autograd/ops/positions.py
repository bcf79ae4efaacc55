"""Scores of positions (N, C, ...) as rows of C scores: views, where classes are last in memory."""

from nnmpi.autograd.ops import softmax
from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result


def cross_entropy(z: Array, labels: Array, *, reduction: str = "mean") -> Result:
    """-log(softmax(z))[label] of logits z (N, C, ...) and integer labels (N, ...)."""
    rows = softmax.cross_entropy(rows_of(z), labels.reshape(-1), reduction=reduction)
    loss, (vjp_rows,), *_ = rows

    def vjp(g: Array, out: Array | None) -> Array:
        return like_rows(vjp_rows(g.reshape(-1) if g.ndim else g, None), z.shape)

    return Result(loss.reshape(labels.shape) if loss.ndim else loss, (vjp,))


def rows_of(z: Array) -> Array:
    """z (N, C, ...) as rows (n, C)."""
    if z.ndim == 2:
        return z
    xp = xp_of(z)
    return xp.ascontiguousarray(xp.moveaxis(z, 1, -1)).reshape(-1, z.shape[1])


def like_rows(rows: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `rows_of`, for an array of this shape."""
    if len(shape) == 2:
        return rows
    N, C, *rest = shape
    xp = xp_of(rows)
    return xp.moveaxis(xp.ascontiguousarray(rows).reshape(N, *rest, C), -1, 1)
