"""CUDA kernels that sum over rows, for each column: thread blocks sum parts of the rows, and a
second kernel adds the sums of the parts."""

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
    launched,
    type_of,
)
from nnmpi.arrays.backend import Array, xp_of

COLUMNS, LANES = 32, THREADS // 32
"""The number of columns that a thread block adds up, and of threads per column, as in norms.cu."""

ROWS_OF_LANE, MOST_PARTS = 16, 64
"""The fewest rows that a thread adds, and the most parts of them."""


def parts_of(rows: int) -> int:
    """Returns into how many parts a sum over `rows` rows is split: thread blocks sum one part each,
    and a second kernel adds the partial sums."""
    return max(1, min(MOST_PARTS, rows // (LANES * ROWS_OF_LANE)))


def _sums(name: str, count: int) -> Callable[..., Any]:
    """Makes a function that launches the kernel `name`, in which thread blocks sum over parts of
    the positions P of arrays (N, P, C).

    The function takes `count` such arrays of one dtype, the float32 arrays that the kernel reads
    besides, two float32 arrays (R, N, C) for the sums of R parts, and the two arrays (N, C) of the
    results, which another kernel writes. The second sum and result may be None.
    """

    @launched
    def loop(*args: Layout) -> Launch | None:
        x, numbers, others, outs = args[0], args[:count], args[count:-2], args[-2:]
        N, P, C = x.shape if x.ndim == 3 else (1, *x.shape)
        dense = are_dense(x.dtype, *numbers) and are_dense(np.float32, *others)
        outs_fit = fits(outs[0]) and are_dense(outs[0].dtype, *outs)
        if not (fits(x) and dense and outs_fit and all(a.shape == x.shape for a in numbers)):
            return None
        if any(out is not None and out.size != N * C for out in outs):
            return None
        R, groups = parts_of(P), -(-C // COLUMNS)
        values = (*args[:-2], *counts(N, P, C, R))
        return Launch("norms", name, N * groups * R * THREADS, values, type_of(x.dtype))

    return loop


@launched
def _add_parts(
    parts: Layout, others: Layout | None, out: Layout, other: Layout | None
) -> Launch | None:
    if not fits(out) or not are_dense(out.dtype, out, other):
        return None
    args = (parts, others, out, other, *counts(out.size, parts.shape[0]))
    threads = out.size if others is None else 2 * out.size
    return Launch("norms", "add_parts", threads, args, type_of(out.dtype))


@launched
def _join_moments(
    means: Layout, squares: Layout, mean: Layout, m2: Layout, rows: int
) -> Launch | None:
    if not are_dense(np.float32, mean, m2):
        return None
    args = (means, squares, mean, m2, *counts(mean.size, rows, means.shape[0]))
    return Launch("norms", "join_moments", mean.size, args)


def _sum_columns(
    sums: Callable[..., Any],
    x: Array,
    others: Sequence[Array | None],
    outs: Sequence[Array],
    join: Callable[..., Any] = _add_parts,
) -> Any:
    """Writes sums over the positions P of x (N, P, C) or (P, C), and of other arrays, to `outs`
    (N, C), of which the second may be None. `sums` is a function of `_sums`.

    If there are several parts, `join` adds their sums; a single one is the result, in float32.
    """
    N, P, C = x.shape if x.ndim == 3 else (1, *x.shape)
    R = parts_of(P)
    if R == 1 and outs[0].dtype == np.float32:
        return sums(x, *others, *outs, *outs)
    xp = xp_of(x)
    parts = [None if out is None else xp.empty((R, N, C), "float32") for out in outs]
    done = sums(x, *others, *parts, *outs)
    return join(*parts, *outs) if done is None else done


_moments, _norm_sums = _sums("moments", 1), _sums("norm_sums", 2)
_norm_relu_sums, _row_norm_sums = _sums("norm_relu_sums", 4), _sums("row_norm_sums", 2)


def moments_loop(x: Array, mean: Array, m2: Array) -> Any:
    def join(*sums: Array) -> Any:
        return _join_moments(*sums, x.shape[-2])

    return _sum_columns(_moments, x, (), (mean, m2), join)


def norm_sums_loop(g: Array, x: Array, mean: Array, total: Array, dot: Array) -> Any:
    return _sum_columns(_norm_sums, g, (x, mean), (total, dot))


def norm_relu_sums_loop(
    g: Array, x: Array, y: Array, mean: Array, masked: Array, total: Array, dot: Array
) -> Any:
    return _sum_columns(_norm_relu_sums, g, (x, y, masked, mean), (total, dot))


def layer_norm_sums_loop(g: Array, x: Array, mean: Array, r: Array, dw: Array, db: Array) -> Any:
    return _sum_columns(_row_norm_sums, g, (x, mean, r), (dw, db))


def rms_norm_sum_loop(g: Array, x: Array, r: Array, dw: Array) -> Any:
    return _sum_columns(_row_norm_sums, g, (x, None, r), (dw, None))


@launched
def _column_sums(g: Layout, parts: Layout | None, out: Layout) -> Launch | None:
    if not fits(g) or not are_dense(g.dtype, g) or not fits(out) or not are_dense(out.dtype, out):
        return None
    (P, C), R = g.shape, 1 if parts is None else parts.shape[0]
    args = (g, parts, out if parts is None else None, *counts(1, P, C, R))
    return Launch("norms", "column_sums", -(-C // COLUMNS) * R * THREADS, args, type_of(g.dtype))


def column_sum_loop(g: Array, out: Array) -> Any:
    P, C = g.shape
    R = parts_of(P) if out.dtype == g.dtype else MOST_PARTS
    if R == 1:
        return _column_sums(g, None, out)
    parts = xp_of(g).empty((R, C), "float32")
    done = _column_sums(g, parts, out)
    return _add_parts(parts, None, out, None) if done is None else done


NAMED_LOOPS: list[Callable[..., Any]] = [
    *(moments_loop, norm_sums_loop, norm_relu_sums_loop, layer_norm_sums_loop),
    *(rms_norm_sum_loop, column_sum_loop),
]
KERNELS: dict[str, Callable[..., Any]] = {loop.__name__: loop for loop in NAMED_LOOPS}
"""The CUDA kernels of this file by their names in the table."""
