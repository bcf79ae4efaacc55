"""Softmax, and the cross-entropy made of it.

`at` keeps where the labels are, since the caller may use their memory again before the backward
pass.
The loss where classes are divided among ranks (`parallel/tensor/loss.py`), that with weights and
smoothing (`losses.py`) and the kernels in C and CUDA are other forms of `cross_entropy`: what its
reductions mean changes in all of them.
"""

from nnmpi.autograd.ops.shape import axis_within
from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result
from nnmpi.kernels import softmax as kernels
from nnmpi.kernels.activations import of_value
from nnmpi.native.table import Kernel

REDUCTIONS = ("mean", "sum", "none")


def log_softmax(a: Array, *, axis: int = -1) -> Result:
    """a - log(sum(exp(a))) over `axis`."""
    return _along(a, axis, kernels.log_softmax_loop, kernels.log_softmax_gradient_loop)


def softmax(a: Array, *, axis: int = -1) -> Result:
    """exp(a) / sum(exp(a)) over `axis`."""
    return _along(a, axis, kernels.softmax_loop, kernels.softmax_gradient_loop)


def _along(a: Array, axis: int, loop: Kernel, gradient_loop: Kernel) -> Result:
    if not a.size:  # the axis itself may be empty
        axis_within(axis, a.ndim)
        return Result(a.copy(), (lambda g, out: g,))
    return of_value(a, loop, gradient_loop, axis)


def cross_entropy(z: Array, labels: Array, *, reduction: str = "mean") -> Result:
    """-log(softmax(z))[label] of logits z (N, C, ...) and integer labels (N, ...)."""
    if z.ndim > 2:
        return _of_positions(z, labels, reduction)
    n, xp = len(labels), xp_of(z)
    scale = 1.0 / max(n, 1) if reduction == "mean" else 1.0
    p, at = kernels.like_scores(z), xp.empty(n, "int64")
    loss = xp.empty((n,) if reduction == "none" else (), p.dtype)
    kernels.cross_entropy_loop(z, labels, scale, loss, p, at)

    def vjp(g: Array, out: Array | None) -> Array:
        dz = xp.empty_like(p)
        kernels.cross_entropy_gradient_loop(p, at, g, scale, dz)
        return dz

    return Result(loss, (vjp,))


def _of_positions(z: Array, labels: Array, reduction: str) -> Result:
    shape = z.shape
    loss, (vjp_rows,), *_ = cross_entropy(rows_of(z), labels.reshape(-1), reduction=reduction)

    def vjp(g: Array, out: Array | None) -> Array:
        return like_rows(vjp_rows(g.reshape(-1) if g.ndim else g, None), shape)

    return Result(loss.reshape(labels.shape) if loss.ndim else loss, (vjp,))


def rows_of(z: Array) -> Array:
    """z (N, C, ...) as rows (n, C): a view, where classes are last in memory."""
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
