"""Which kernel of the table is which in CUDA: arguments, checked and converted, and the launch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.backend import Array, xp_of
from nnmpi.cuda.launch import THREADS, all_fit, fits, is_plain, run

NARROW = 32  # up to so many classes, a thread has a row of scores; above, a block has one


def bias_relu_loop(lines: Array, bias: Array | None, zero: Array | None) -> Any:
    width = lines.shape[-1]
    if not fits(lines) or not all(
        a is None or (is_plain(a) and a.shape == (width,)) for a in (bias, zero)
    ):
        return NotImplemented
    if bias is not None or zero is not None:
        sizes, cuts = map(np.uint32, (lines.size, width)), np.int32(zero is not None)
        run("elementwise", "bias_relu", lines.size, (lines, bias, *sizes, cuts))
    return None


def relu_gradient_loop(g: Array, y: Array, out: Array) -> Any:
    if not all_fit(y, g, out):
        return NotImplemented
    run("elementwise", "relu_gradient", y.size, (g, y, out, np.uint32(y.size)))
    return None


def adam_loop(
    p: Array, g: Array, M: Array, V: Array, largest: Array | None, *numbers: float
) -> Any:
    if not all_fit(p, g, M, V, largest):
        return NotImplemented
    args = (p, g, M, V, largest, np.uint32(p.size), *map(np.float32, numbers))
    run("optimizers", "adam", p.size, args)
    return None


def sgd_loop(p: Array, g: Array, velocity: Array | None, *numbers: float) -> Any:
    if not all_fit(p, g, velocity):
        return NotImplemented
    *floats, direct = numbers
    args = (p, g, velocity, np.uint32(p.size), *map(np.float32, floats), np.int32(direct))
    run("optimizers", "sgd", p.size, args)
    return None


def rmsprop_loop(
    p: Array, g: Array, s: Array, velocity: Array | None, mean: Array | None, *numbers: float
) -> Any:
    if not all_fit(p, g, s, velocity, mean):
        return NotImplemented
    args = (p, g, s, velocity, mean, np.uint32(p.size), *map(np.float32, numbers))
    run("optimizers", "rmsprop", p.size, args)
    return None


def cross_entropy_loop(
    z: Array, labels: Array, scale: float, loss: Array, p: Array, at: Array
) -> Any:
    beside = p.flags.f_contiguous  # whether rows are beside each other in memory
    if (
        not all_fit(z, p.T if beside else p)
        or not (is_plain(at, "l") and at.shape == labels.shape == z.shape[:1])
        or not is_plain(loss)
    ):
        return NotImplemented
    n, C = z.shape
    if not is_plain(labels, "l"):
        at[...] = labels
        labels = at
    losses = loss if loss.ndim else xp_of(z).empty(n, "float32")
    by = (1, n) if beside else (C, 1)
    name, threads = ("narrow_rows", n) if C <= NARROW else ("wide_rows", n * THREADS)
    args = (z, labels, losses, p, at, *map(np.uint32, (n, C, *by)))
    run("cross_entropy", name, threads, args)
    if not loss.ndim:
        run("cross_entropy", "sum_losses", 1, (losses, loss, np.uint32(n), np.float32(scale)))
    return None


def cross_entropy_gradient_loop(p: Array, at: Array, g: Array, scale: float, dz: Array) -> Any:
    beside = p.flags.f_contiguous
    each = g.ndim > 0
    p, dz = (p.T, dz.T) if beside else (p, dz)
    n, C = p.shape[::-1] if beside else p.shape
    if (
        not all_fit(p, dz)
        or not (is_plain(at, "l") and at.size == n)
        or not (is_plain(g) and g.size == (n if each else 1))
    ):
        return NotImplemented
    sizes, flags = map(np.uint32, (n, C)), map(np.int32, (beside, each))
    run("cross_entropy", "gradient", p.size, (p, at, g, dz, *sizes, *flags, np.float32(scale)))
    return None


KERNELS: dict[str, Callable[..., Any]] = {
    loop.__name__: loop
    for loop in (
        *(bias_relu_loop, relu_gradient_loop, adam_loop, sgd_loop, rmsprop_loop),
        *(cross_entropy_loop, cross_entropy_gradient_loop),
    )
}
"""The kernels by their names in the table."""
