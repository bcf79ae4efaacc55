"""CUDA kernels that sum over rows, for each column: blocks of threads sum parts of the rows, and
the last block with the same columns adds up the sums of the parts."""

from collections.abc import Callable, Sequence
from functools import cache
from threading import get_ident
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

COLUMNS, LANES = 32, THREADS // 32
"""The number of columns that a thread block adds up, and of threads per column, as in norms.cu."""

ROWS_OF_LANE, MOST_PARTS = 16, 64
"""The fewest rows that a thread adds, and the most parts of them."""


@cache
def parts_of(rows: int) -> int:
    """Returns into how many parts a sum over `rows` rows is split: a thread block sums each."""
    return max(1, min(MOST_PARTS, rows // (LANES * ROWS_OF_LANE)))


def _launch(
    name: str, x: Layout, args: Sequence[Any], parts: Layout | None, *numbers: Any
) -> Launch:
    """The launch of a kernel that adds up rows P of x (N, P, C) or (P, C), for _sum_columns."""
    N, P, C = x.shape if x.ndim == 3 else (1, *x.shape)
    R = 1 if parts is None else parts.shape[1]
    threads = N * -(-C // COLUMNS) * R * THREADS
    values = (*args, *counts(N, P, C, R), *numbers)
    return Launch("norms", name, threads, values, type_of(x.dtype))


def _sums(name: str, count: int) -> Callable[..., Any]:
    """Makes a function that launches the kernel `name`, in which thread blocks sum over parts of
    the positions P of arrays (N, P, C).

    The function takes `count` such arrays of one dtype, the float32 arrays that the kernel reads
    besides, the memory of parts and tickets (see `_sum_columns`), and two float32 arrays (N, C) for
    the results, of which the second may be None.
    """

    @launched
    def loop(*args: Layout) -> Launch | None:
        x, numbers, wide = args[0], args[:count], (*args[count:-4], *args[-2:])
        plain = are_dense(x.dtype, *numbers) and are_dense(np.float32, *wide)
        if not (fits(x) and plain and all(a.shape == x.shape for a in numbers)):
            return None
        return _launch(name, x, args, args[-4])

    return loop


def _sum_columns(
    sums: Callable[..., Any], x: Array, others: Sequence[Array | None], outs: Sequence[Any]
) -> Any:
    """Writes sums over the positions P of x (N, P, C) or (P, C), and of other arrays, to `outs`.
    `sums` launches the kernel, which gets memory for R parts of one or two sums, (2, R, N, C), and
    for each group of columns a ticket, by which its blocks know which is the last; None if R is
    1."""
    N, P, C = x.shape if x.ndim == 3 else (1, *x.shape)
    R = parts_of(P)
    if R == 1:
        return sums(x, *others, None, None, *outs)
    xp = xp_of(x)
    tickets = _tickets(xp, xp.cuda.runtime.getDevice(), get_ident(), N * -(-C // COLUMNS))
    parts = xp.empty((min(2, len(outs)), R, N, C), "float32")
    return sums(x, *others, parts, tickets, *outs)


@cache
def _tickets(xp: Any, device: int, thread: int, n: int) -> Array:
    """Makes n zeros, which each kernel leaves behind; kernels of several threads run side by side.
    Graphs of kernels keep their address, so they do not lie in the memory of one."""
    assert not xp.cuda.get_current_stream().is_capturing(), "no graph is captured of a first call"
    return xp.zeros(n, "uint32")


@launched
def _moments(
    x: Layout,
    parts: Layout | None,
    tickets: Layout | None,
    mean: Layout,
    m2: Layout,
    running: Layout | None = None,
    var: Layout | None = None,
    batches: Layout | None = None,
    *numbers: Any,
) -> Launch | None:
    if (
        not fits(x)
        or not are_dense(x.dtype, x)
        or not are_dense(np.float32, mean, m2, running, var)
    ):
        return None
    if batches is not None and (batches.dtype != np.int64 or x.shape[0] > 1):
        return None
    args = x, parts, tickets, mean, m2, running, var, batches
    return _launch("moments", x, args, parts, *map(float32, numbers or (1, 0, 0)))


def moments_loop(x: Array, mean: Array, m2: Array) -> Any:
    return _sum_columns(_moments, x, (), (mean, m2))


def tracked_moments_loop(
    x: Array, mean: Array, m2: Array, running: Array, var: Array, batches: Array, share: Any
) -> Any:
    if not isinstance(share, float):
        return NotImplemented
    numbers = x.shape[1] - 1, share, 1 - share
    return _sum_columns(_moments, x, (), (mean, m2, running, var, batches, *numbers))


_norm_sums, _row_norm_sums = _sums("norm_sums", 2), _sums("row_norm_sums", 2)


@launched
def _batch_norm_sums(*args: Layout) -> Launch | None:
    x, (parts, _, sums, dw, db) = args[0], args[6:]
    plain = are_dense(x.dtype, *args[:4]) and are_dense(np.float32, *args[4:6], sums)
    if not (fits(x) and plain and are_dense(dw.dtype, dw, db)):
        return None
    if dw.dtype not in (np.float32, x.dtype):
        return None
    return _launch("batch_norm_sums", x, args, parts, np.int32(dw.dtype != np.float32))


def norm_sums_loop(g: Array, x: Array, mean: Array, total: Array, dot: Array) -> Any:
    return _sum_columns(_norm_sums, g, (x, mean), (total, dot))


def batch_norm_sums_loop(
    g: Array, x: Array, y: Any, mean: Array, r: Array, masked: Any, *outs: Array
) -> Any:
    return _sum_columns(_batch_norm_sums, g, (x, y, masked, mean, r), outs)


def layer_norm_sums_loop(g: Array, x: Array, mean: Array, r: Array, dw: Array, db: Array) -> Any:
    return _sum_columns(_row_norm_sums, g, (x, mean, r), (dw, db))


def rms_norm_sum_loop(g: Array, x: Array, r: Array, dw: Array) -> Any:
    return _sum_columns(_row_norm_sums, g, (x, None, r), (dw, None))


@launched
def _column_sums(
    g: Layout, parts: Layout | None, tickets: Layout | None, out: Layout
) -> Launch | None:
    if not fits(g) or not are_dense(g.dtype, g) or not fits(out) or not are_dense(out.dtype, out):
        return None
    is_wide = out.dtype == np.float32
    if not is_wide and out.dtype != g.dtype:
        return None
    outs = (out, None) if is_wide else (None, out)
    return _launch("column_sums", g, (g, parts, tickets, *outs), parts)


def column_sum_loop(g: Array, out: Array) -> Any:
    return _sum_columns(_column_sums, g, (), (out,))


NAMED_LOOPS: list[Callable[..., Any]] = [
    *(moments_loop, tracked_moments_loop, norm_sums_loop, batch_norm_sums_loop),
    *(layer_norm_sums_loop, rms_norm_sum_loop, column_sum_loop),
]
KERNELS: dict[str, Callable[..., Any]] = {loop.__name__: loop for loop in NAMED_LOOPS}
"""The CUDA kernels of this file by their names in the table."""
