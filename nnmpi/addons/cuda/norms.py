"""CUDA kernels of normalisation: rows by a block, columns in two stages."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi.addons.cuda.launch import FLOAT, THREADS, are_dense, counts, fits, run, type_of
from nnmpi.arrays.backend import Array, xp_of

COLUMNS, LANES = 32, THREADS // 32
"""The number of columns that a thread block adds up, and of threads per column, as in norms.cu."""

ROWS_OF_LANE, MOST_PARTS = 16, 64
"""The fewest rows that a thread adds, and the most parts of them."""


def _of_rows(
    name: str,
    x: Array,
    numbers: Sequence[Array | None],
    wide: Sequence[Array | None],
    args: Sequence[Any],
) -> Any:
    """Launches a normalisation kernel on x (M, K), one thread block per row.

    `numbers` are the arguments that must have the dtype of x, `wide` the float32 statistics; each
    has the shape (M, K), (K,) or (M,). `args` are all arguments of the kernel. Returns
    NotImplemented if the arrays do not fit.
    """
    if not fits(x) or not are_dense(x.dtype, *numbers) or not are_dense(np.float32, *wide):
        return NotImplemented
    M, K = x.shape
    shapes = {a.shape for a in (*numbers, *wide) if a is not None}
    if not shapes <= {(M, K), (K,), (M,)}:
        return NotImplemented
    return run("norms", name, M * THREADS, args, type_of(x.dtype))


def layer_norm_loop(
    x: Array, w: Array | None, b: Array | None, eps: float, mean: Array, r: Array, y: Array
) -> Any:
    args = (x, w, b, mean, r, y, *counts(*x.shape), np.float32(eps))
    return _of_rows("layer_norm", x, (x, w, b, y), (mean, r), args)


def layer_norm_gradient_loop(
    g: Array, x: Array, w: Array | None, mean: Array, r: Array, dx: Array
) -> Any:
    args = (g, x, w, mean, r, dx, *counts(*x.shape))
    return _of_rows("layer_norm_gradient", x, (g, x, w, dx), (mean, r), args)


def rms_norm_loop(x: Array, w: Array | None, eps: float, r: Array, y: Array) -> Any:
    args = (x, w, r, y, *counts(*x.shape), np.float32(eps))
    return _of_rows("rms_norm", x, (x, w, y), (r,), args)


def rms_norm_gradient_loop(g: Array, x: Array, w: Array | None, r: Array, dx: Array) -> Any:
    args = (g, x, w, r, dx, *counts(*x.shape))
    return _of_rows("rms_norm_gradient", x, (g, x, w, dx), (r,), args)


def parts_of(rows: int) -> int:
    """Returns into how many parts a sum over `rows` rows is split: thread blocks sum one part each,
    and a second kernel adds the partial sums."""
    return max(1, min(MOST_PARTS, rows // (LANES * ROWS_OF_LANE)))


def _columns(
    name: str,
    numbers: Sequence[Array],
    statistics: Sequence[Array | None],
    outs: Sequence[Array | None],
    join: str = "add_parts",
) -> Any:
    """Launches the kernel `name`, which sums over the positions P of arrays (N, P, C), and writes
    the sums to `outs` (N, C); an output that is not needed is None.

    Thread blocks sum parts of the positions; then the kernel `join` adds the partial sums.
    `numbers` are the arrays (N, P, C), of one dtype, and `statistics` the float32 arrays that the
    kernel reads besides. Returns NotImplemented for arrays that do not fit.
    """
    first = numbers[0]
    N, P, C = first.shape if first.ndim == 3 else (1, *first.shape)
    wanted = [out for out in outs if out is not None]
    dense = are_dense(first.dtype, *numbers) and are_dense(np.float32, *statistics)
    outs_fit = all(fits(out) and are_dense(out.dtype, out) and out.size == N * C for out in wanted)
    if not (fits(first) and dense and outs_fit and all(a.shape == first.shape for a in numbers)):
        return NotImplemented
    R, T, groups = parts_of(P), type_of(first.dtype), -(-C // COLUMNS)
    # if there is one part, it is the result, and needs no second stage
    plain = R == 1 and all(out.dtype == np.float32 for out in wanted)
    xp, n = xp_of(first), N * C
    parts = outs if plain else [None if o is None else xp.empty((R, N, C), "float32") for o in outs]
    args = (*numbers, *statistics, *parts, *counts(N, P, C, R))
    run("norms", name, N * groups * R * THREADS, args, T)
    if plain:
        return None
    if join != "add_parts":
        return run("norms", join, n, (*parts, *outs, *counts(n, P, R)))
    for part, out in zip(parts, outs, strict=True):
        if out is not None:
            run("norms", "add_parts", n, (part, out, *counts(n, R)), type_of(out.dtype))
    return None


def moments_loop(x: Array, mean: Array, m2: Array) -> Any:
    if mean.dtype != np.float32:
        return NotImplemented
    return _columns("moments", (x,), (), (mean, m2), "join_moments")


def norm_sums_loop(g: Array, x: Array, mean: Array, total: Array, dot: Array) -> Any:
    return _columns("norm_sums", (g, x), (mean,), (total, dot))


def norm_relu_sums_loop(
    g: Array, x: Array, y: Array, mean: Array, masked: Array, total: Array, dot: Array
) -> Any:
    return _columns("norm_relu_sums", (g, x, y, masked), (mean,), (total, dot))


def layer_norm_sums_loop(g: Array, x: Array, mean: Array, r: Array, dw: Array, db: Array) -> Any:
    return _columns("row_norm_sums", (g, x), (mean, r), (dw, db))


def rms_norm_sum_loop(g: Array, x: Array, r: Array, dw: Array) -> Any:
    return _columns("row_norm_sums", (g, x), (None, r), (dw, None))


def column_sum_loop(g: Array, out: Array) -> Any:
    if not fits(g) or not are_dense(g.dtype, g) or not fits(out) or not are_dense(out.dtype, out):
        return NotImplemented
    (P, C), same = g.shape, out.dtype == g.dtype
    R = parts_of(P) if same else MOST_PARTS
    parts = None if R == 1 else xp_of(g).empty((R, C), "float32")
    args = (g, parts, out if R == 1 else None, *counts(1, P, C, R))
    run("norms", "column_sums", -(-C // COLUMNS) * R * THREADS, args, type_of(g.dtype))
    if R > 1:
        run("norms", "add_parts", C, (parts, out, *counts(C, R)), type_of(out.dtype))
    return None


# ---- one element for each channel


def _of_channels(name: str, wide: Sequence[Array], w: Array | None, args: Sequence[Any]) -> Any:
    """Launches the kernel `name` with a thread for each channel.

    `wide` are float32 statistics, w weights of any supported dtype or None, and `args` all
    arguments of the kernel. Returns NotImplemented for arrays that do not fit.
    """
    if not fits(wide[0]) or not are_dense(np.float32, *wide):
        return NotImplemented
    if w is not None and (not fits(w) or not are_dense(w.dtype, w)):
        return NotImplemented
    return run("norms", name, wide[0].size, args, FLOAT if w is None else type_of(w.dtype))


def channel_scales_loop(
    m2: Array, n: int, w: Array | None, eps: float, r: Array, scale: Array
) -> Any:
    args = (m2, w, r, scale, *counts(m2.size), np.float32(n), np.float32(eps))
    return _of_channels("channel_scales", (m2, r, scale), w, args)


def track_loop(
    mean: Array, var: Array, batches: Array, batch_mean: Array, m2: Array, n: int, share: Any
) -> Any:
    if not isinstance(share, float) or batches.dtype != np.int64:
        return NotImplemented
    constants = map(np.float32, (n - 1, share, 1 - share))
    args = (mean, var, batches, batch_mean, m2, *counts(mean.size), *constants)
    return _of_channels("track", (mean, var, batch_mean, m2), None, args)


def _by_column(
    name: str,
    x: Array,
    numbers: Sequence[Array | None],
    statistics: Sequence[Array],
    args: Sequence[Any],
    *options: int,
) -> Any:
    """Launches the kernel `name` with a thread for each element of x (N, P, C).

    `numbers` are the arguments that must have the dtype of x, `statistics` float32 arrays (N, C),
    `args` all arrays and `options` the integers that the kernel takes. Returns NotImplemented for
    arrays that do not fit.
    """
    if not fits(x) or not are_dense(x.dtype, *numbers) or not are_dense(np.float32, *statistics):
        return NotImplemented
    N, P, C = x.shape
    if any(a.size != N * C for a in statistics):
        return NotImplemented
    numbered = (*args, *counts(x.size, P * C, C), *map(np.int32, options))
    return run("norms", name, x.size, numbered, type_of(x.dtype))


def _normalise(then: int) -> Callable[..., Any]:
    """Makes a function that launches the kernel `normalise`, y = (x - mean) * scale + shift.

    `then` is the activation that follows: 0 for none, 1 for ReLU, 2 for SiLU.
    """

    def loop(x: Array, mean: Array, scale: Array, shift: Array | None, y: Array) -> Any:
        args = (x, mean, scale, shift, y)
        return _by_column("normalise", x, (x, shift, y), (mean, scale), args, then)

    return loop


def norm_gradient_loop(
    g: Array, x: Array, mean: Array, a: Array, b: Array, e: Array, dx: Array
) -> Any:
    args = (g, x, mean, a, b, e, dx)
    return _by_column("norm_gradient", x, (g, x, dx), (mean, a, b, e), args)


def batch_norm_gradient_loop(
    g: Array, x: Array, mean: Array, sums: Array, scale: Array, r: Array, n: int, dx: Array
) -> Any:
    statistics = mean, sums, scale, r
    if not fits(x) or not are_dense(x.dtype, g, x, dx) or not are_dense(np.float32, *statistics):
        return NotImplemented
    args = (g, x, *statistics, dx, *counts(x.size, r.size), np.float32(n))
    return run("norms", "batch_norm_gradient", x.size, args, type_of(x.dtype))


NAMED_LOOPS: list[Callable[..., Any]] = [
    *(layer_norm_loop, layer_norm_gradient_loop, layer_norm_sums_loop, rms_norm_loop),
    *(rms_norm_gradient_loop, rms_norm_sum_loop, moments_loop, norm_sums_loop),
    *(norm_relu_sums_loop, norm_gradient_loop, column_sum_loop, channel_scales_loop),
    *(batch_norm_gradient_loop, track_loop),
]
KERNELS: dict[str, Callable[..., Any]] = {
    **{loop.__name__: loop for loop in NAMED_LOOPS},
    "normalise_loop": _normalise(0),
    "normalise_relu_loop": _normalise(1),
    "normalise_silu_loop": _normalise(2),
}
"""The CUDA kernels of this file by their names in the table."""
