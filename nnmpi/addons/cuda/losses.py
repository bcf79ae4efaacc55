"""CUDA kernels of cross-entropy, which leave out the labels that are ignored."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.addons.cuda.launch import (
    THREADS,
    Launch,
    Layout,
    are_dense,
    counts,
    fits,
    float32,
    launched,
    type_of,
)
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.softmax import NO_LABEL

NARROW = 32  # up to this many classes a thread has a row of scores; for more a block has one
ROWS_OF_BLOCK = 4 * THREADS  # up to this many rows one block has all, and adds up their losses


@launched
def _class_losses(
    z: Layout,
    labels: Layout,
    scale: Any,
    losses: Layout,
    total: Layout | None,
    sums: Layout,
    at: Layout,
    ignored: int,
    factor: Layout | None,
) -> Launch | None:
    plain = are_dense(z.dtype, z) and are_dense(np.float32, losses, total, sums, factor)
    if not fits(z) or not plain or not are_dense(np.int64, labels, at) or labels.shape != at.shape:
        return None
    n, C = z.shape
    arrays = z, labels, losses, sums, at, total, factor
    args = (*arrays, np.int64(ignored), *counts(n, C), float32(scale))
    name, threads = ("narrow_losses", n) if C <= NARROW else ("wide_losses", n * THREADS)
    return Launch("softmax", name, threads if total is None else 1, args, type_of(z.dtype))


@launched
def _sum_losses(
    losses: Layout, total: Layout, scale: Any, at: Layout | None, ignored: int, factor: Any
) -> Launch | None:
    if not are_dense(np.float32, losses, total):
        return None
    args = losses, at, total, factor, np.int64(ignored), *counts(losses.size), float32(scale)
    return Launch("softmax", "sum_losses", 1, args)


def sum_losses_loop(losses: Array, total: Array, scale: float) -> Any:
    return _sum_losses(losses, total, scale, None, NO_LABEL, None)


def class_losses_loop(
    z: Array,
    labels: Array,
    scale: float,
    loss: Array,
    sums: Array,
    at: Array,
    ignored: int = NO_LABEL,
    factor: Array | None = None,
) -> Any:
    xp, (n, C) = xp_of(z), z.shape
    fused = C <= NARROW and n <= ROWS_OF_BLOCK and not loss.ndim
    losses = loss if loss.ndim else xp.empty(n, "float32")
    if labels.dtype != np.int64 or not labels.flags.c_contiguous:
        labels = xp.ascontiguousarray(labels, np.int64)
    total = loss if fused else None
    done = _class_losses(z, labels, scale, losses, total, sums, at, ignored, factor)
    if done is None and not loss.ndim and not fused:
        counted = None if factor is None else at
        return _sum_losses(losses, loss, scale, counted, ignored, factor)
    return done


@launched
def _class_gradient(
    z: Layout,
    at: Layout,
    sums: Layout,
    g: Layout,
    scale: Any,
    dz: Layout,
    ignored: int,
    factor: Layout | None,
) -> Launch | None:
    plain = are_dense(z.dtype, z, dz) and are_dense(np.float32, sums, g, factor)
    if not fits(z) or not plain or not are_dense(np.int64, at):
        return None
    numbers = np.int64(ignored), *counts(*z.shape), np.int32(g.ndim > 0), float32(scale)
    args = (z, at, sums, g, factor, dz, *numbers)
    return Launch("softmax", "class_gradient", z.size, args, type_of(z.dtype))


def class_gradient_loop(*args: Any) -> Any:
    return _class_gradient(*args) if len(args) > 6 else _class_gradient(*args, NO_LABEL, None)


NAMED_LOOPS = class_losses_loop, class_gradient_loop, sum_losses_loop
KERNELS: dict[str, Callable[..., Any]] = {loop.__name__: loop for loop in NAMED_LOOPS}
"""The CUDA kernels of this file by their names in the table."""
