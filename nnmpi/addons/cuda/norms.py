"""CUDA kernels of normalisation, which take a row in a block, or an element in a thread."""

from collections.abc import Callable, Sequence
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
from nnmpi.arrays.backend import Array


def _of_rows(
    name: str,
    x: Layout,
    numbers: Sequence[Layout | None],
    wide: Sequence[Layout | None],
    args: Sequence[Any],
) -> Launch | None:
    """Returns the launch of a normalisation kernel on x (M, K), one thread block per row.

    `numbers` are the arguments that must have the dtype of x, `wide` the float32 statistics; each
    has the shape (M, K), (K,) or (M,). `args` are all arguments of the kernel. Returns None if the
    arrays do not fit.
    """
    if not fits(x) or not are_dense(x.dtype, *numbers) or not are_dense(np.float32, *wide):
        return None
    M, K = x.shape
    shapes = {a.shape for a in (*numbers, *wide) if a is not None}
    if not shapes <= {(M, K), (K,), (M,)}:
        return None
    return Launch("norms", name, M * THREADS, args, type_of(x.dtype))


@launched
def layer_norm_loop(
    x: Layout,
    w: Layout | None,
    b: Layout | None,
    eps: Any,
    mean: Layout,
    r: Layout,
    y: Layout,
) -> Launch | None:
    args = (x, w, b, mean, r, y, *counts(*x.shape), float32(eps))
    return _of_rows("layer_norm", x, (x, w, b, y), (mean, r), args)


@launched
def layer_norm_gradient_loop(
    g: Layout, x: Layout, w: Layout | None, mean: Layout, r: Layout, dx: Layout
) -> Launch | None:
    args = (g, x, w, mean, r, dx, *counts(*x.shape))
    return _of_rows("layer_norm_gradient", x, (g, x, w, dx), (mean, r), args)


@launched
def rms_norm_loop(x: Layout, w: Layout | None, eps: Any, r: Layout, y: Layout) -> Launch | None:
    args = (x, w, r, y, *counts(*x.shape), float32(eps))
    return _of_rows("rms_norm", x, (x, w, y), (r,), args)


@launched
def rms_norm_gradient_loop(
    g: Layout, x: Layout, w: Layout | None, r: Layout, dx: Layout
) -> Launch | None:
    args = (g, x, w, r, dx, *counts(*x.shape))
    return _of_rows("rms_norm_gradient", x, (g, x, w, dx), (r,), args)


# ---- one element for each channel


@launched
def batch_norm_loop(
    x: Layout,
    mean: Layout,
    m2: Layout,
    n: int,
    w: Layout | None,
    b: Layout | None,
    eps: Any,
    relu: bool,
    scales: Layout,
    y: Layout,
) -> Launch | None:
    plain = are_dense(x.dtype, x, w, b, y) and are_dense(np.float32, mean, m2, scales)
    if not fits(x) or not plain:
        return None
    numbers = *counts(x.size, m2.size), float32(n), float32(eps), np.int32(relu)
    args = (x, mean, m2, w, b, scales, y, *numbers)
    return Launch("norms", "batch_norm", x.size, args, type_of(x.dtype))


@launched
def _track(
    mean: Layout, var: Layout, batches: Layout, batch_mean: Layout, m2: Layout, *numbers: Any
) -> Launch | None:
    arrays = mean, var, batch_mean, m2
    if batches.dtype != np.int64 or not fits(mean) or not are_dense(np.float32, *arrays):
        return None
    args = (mean, var, batches, batch_mean, m2, *counts(mean.size), *map(float32, numbers))
    return Launch("norms", "track", mean.size, args)


def track_loop(
    mean: Array, var: Array, batches: Array, batch_mean: Array, m2: Array, n: int, share: Any
) -> Any:
    if not isinstance(share, float):
        return NotImplemented
    return _track(mean, var, batches, batch_mean, m2, n - 1, share, 1 - share)


def _by_column(
    name: str,
    x: Layout,
    numbers: Sequence[Layout | None],
    statistics: Sequence[Layout],
    args: Sequence[Any],
    *options: int,
) -> Launch | None:
    """Returns the launch of the kernel `name` with a thread for each element of x (N, P, C).

    `numbers` are the arguments that must have the dtype of x, `statistics` float32 arrays (N, C),
    `args` all arrays and `options` the integers that the kernel takes. Returns None for arrays that
    do not fit.
    """
    if not fits(x) or not are_dense(x.dtype, *numbers) or not are_dense(np.float32, *statistics):
        return None
    N, P, C = x.shape
    if any(a.size != N * C for a in statistics):
        return None
    numbered = (*args, *counts(x.size, P * C, C), *map(np.int32, options))
    return Launch("norms", name, x.size, numbered, type_of(x.dtype))


def _normalise(silu: bool) -> Callable[..., Any]:
    """Makes a function that launches the kernel `normalise`, y = (x - mean) * scale + shift, with
    SiLU of it if `silu`."""

    @launched
    def loop(
        x: Layout, mean: Layout, scale: Layout, shift: Layout | None, y: Layout
    ) -> Launch | None:
        args = (x, mean, scale, shift, y)
        return _by_column("normalise", x, (x, shift, y), (mean, scale), args, silu)

    return loop


@launched
def norm_gradient_loop(
    g: Layout, x: Layout, mean: Layout, a: Layout, b: Layout, e: Layout, dx: Layout
) -> Launch | None:
    args = (g, x, mean, a, b, e, dx)
    return _by_column("norm_gradient", x, (g, x, dx), (mean, a, b, e), args)


@launched
def batch_norm_gradient_loop(
    g: Layout,
    x: Layout,
    mean: Layout,
    sums: Layout,
    scale: Layout,
    r: Layout,
    n: int,
    dx: Layout,
) -> Launch | None:
    statistics = mean, sums, scale, r
    if not fits(x) or not are_dense(x.dtype, g, x, dx) or not are_dense(np.float32, *statistics):
        return None
    args = (g, x, *statistics, dx, *counts(x.size, r.size), float32(n))
    return Launch("norms", "batch_norm_gradient", x.size, args, type_of(x.dtype))


NAMED_LOOPS: list[Callable[..., Any]] = [
    *(layer_norm_loop, layer_norm_gradient_loop, rms_norm_loop, rms_norm_gradient_loop),
    *(norm_gradient_loop, batch_norm_loop, batch_norm_gradient_loop, track_loop),
]
KERNELS: dict[str, Callable[..., Any]] = {
    **{loop.__name__: loop for loop in NAMED_LOOPS},
    "normalise_loop": _normalise(False),
    "normalise_silu_loop": _normalise(True),
}
"""The CUDA kernels of this file by their names in the table."""
