"""Softmax, and the cross-entropy made of it.

The op keeps a copy of the labels' positions (`at`), because the caller may reuse the memory of the
labels before the backward pass. `cross_entropy` has other forms: with classes divided among ranks
(`parallel/tensor/loss.py`), with weights and smoothing (`losses.py`), and the kernels in C and
CUDA. If you change what a reduction means, change all of them.
"""

from __future__ import annotations

import numpy as np

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels import softmax as kernels
from nnmpi.arrays.kernels.activations import of_value
from nnmpi.arrays.native.table import Kernel
from nnmpi.autograd.ops.shape import axis_within

REDUCTIONS = ("mean", "sum", "none")


def log_softmax(a: Array, *, axis: int = -1) -> Result:
    """a - log(sum(exp(a))) over `axis`."""
    return _along(a, axis, kernels.log_softmax_loop, kernels.log_softmax_gradient_loop)


def softmax(a: Array, *, axis: int = -1) -> Result:
    """exp(a) / sum(exp(a)) over `axis`."""
    return _along(a, axis, kernels.softmax_loop, kernels.softmax_gradient_loop)


def _along(a: Array, axis: int, loop: Kernel, gradient_loop: Kernel) -> Result:
    if not a.size:  # an empty axis has no maximum
        axis_within(axis, a.ndim)
        return Result(a.copy(), (lambda g, out: g,))
    return of_value(a, loop, gradient_loop, axis)


def cross_entropy(
    z: Array, labels: Array, *, reduction: str = "mean", widens: bool = False
) -> Result:
    """-log(softmax(z))[label] of logits z (N, C, ...) and integer labels (N, ...), reduced by
    `reduction` to the "mean" or "sum", or one loss for each label ("none").

    With `widens`, a loss of 16-bit logits on a device stays float32, instead of being rounded.
    """
    if z.ndim > 2:
        return _of_positions(z, labels, reduction, widens)
    n, xp = len(labels), xp_of(z)
    scale = 1.0 / max(n, 1) if reduction == "mean" else 1.0
    if not of(z).is_host:
        return kernels.class_losses(z, labels, reduction, widens)
    p, at = kernels.like_scores(z), xp.empty(n, np.int64)
    loss = xp.empty((n,) if reduction == "none" else (), p.dtype)
    kernels.cross_entropy_loop(z, labels, scale, loss, p, at)

    def vjp(g: Array, out: Array | None) -> Array:
        dz = xp.empty(p.shape, p.dtype)  # in rows, as the op before it needs them
        kernels.cross_entropy_gradient_loop(p, at, g, scale, dz)
        return dz

    return Result(loss, (vjp,))


def _of_positions(z: Array, labels: Array, reduction: str, widens: bool) -> Result:
    shape, rows = z.shape, (rows_of(z), labels.reshape(-1))
    loss, (vjp_rows,), *_ = cross_entropy(*rows, reduction=reduction, widens=widens)

    def vjp(g: Array, out: Array | None) -> Array:
        return like_rows(vjp_rows(g.reshape(-1) if g.ndim else g, None), shape)

    return Result(loss.reshape(labels.shape) if loss.ndim else loss, (vjp,))


def rows_of(z: Array) -> Array:
    """Scores z (N, C, ...) as rows (n, C): a view if classes are last in memory."""
    if z.ndim == 2:
        return z
    xp = xp_of(z)
    return xp.ascontiguousarray(xp.moveaxis(z, 1, -1)).reshape(-1, z.shape[1])


def like_rows(rows: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `rows_of`: rows (n, C) as an array of `shape` (N, C, ...)."""
    if len(shape) == 2:
        return rows
    N, C, *rest = shape
    xp = xp_of(rows)
    return xp.moveaxis(xp.ascontiguousarray(rows).reshape(N, *rest, C), -1, 1)
