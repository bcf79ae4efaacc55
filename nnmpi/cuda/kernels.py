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


def _each(file: str, name: str, arrays: int, floats: int = 0) -> Callable[..., Any]:
    """A loop over so many arrays of one size, each of which but the first may be None: they are
    followed by so many numbers in float32, and by flags."""

    def loop(*args: Any) -> Any:
        given, numbers, flags = args[:arrays], args[arrays:][:floats], args[arrays + floats :]
        if not all_fit(*given):
            return NotImplemented
        n = given[0].size
        run(file, name, n, (*given, np.uint32(n), *map(np.float32, numbers), *map(np.int32, flags)))
        return None

    return loop


def _step(name: str, arrays: int, floats: int, flags: int = 0) -> Callable[..., Any]:
    """A step on so many arrays of float32, with so many numbers and flags."""
    loop, numbers = _each("optimizers", name, arrays, floats), floats + flags

    def step(*args: Any) -> Any:
        values, (factor, *undo) = args[arrays], args[arrays + 1 + numbers :]
        if values is not None or factor != 1 or undo:
            return NotImplemented
        return loop(*args[:arrays], *args[arrays + 1 :][:numbers])

    return step


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
    "bias_relu_loop": bias_relu_loop,
    "relu_gradient_loop": _each("elementwise", "relu_gradient", 3),
    "adam_loop": _step("adam", 5, 6),
    "sgd_loop": _step("sgd", 3, 4, 1),
    "rmsprop_loop": _step("rmsprop", 5, 6),
    "cross_entropy_loop": cross_entropy_loop,
    "cross_entropy_gradient_loop": cross_entropy_gradient_loop,
}
"""The kernels by their names in the table."""
