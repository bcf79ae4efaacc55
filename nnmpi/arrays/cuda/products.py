"""Products of matrices in 16 bits by cuBLAS, several at a time, with sums in float32.

CuPy copies such matrices to float32 first, and has none of bfloat16 (14.2). They are read where
they lie: cuBLAS takes matrices by columns, so what lies by rows is its transpose to it, and

    C = A B    is computed as    C^T = B^T A^T
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import is_half

TYPES = {"float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float32": "CUDA_R_32F"}
FACTORS = np.array([0, 1], np.float32)
"""The factors of a product and of the sum it is added to, whose addresses cuBLAS takes."""


class Matrices(NamedTuple):
    """Matrices that lie by rows, each `ld` numbers behind the last one; or by columns."""

    array: Array
    by_rows: bool
    ld: int

    @property
    def strides(self) -> list[int]:
        """The distance between a matrix and the next one along each axis, counted in numbers."""
        return [s // self.array.itemsize for s in self.array.strides[:-2]]


def products_loop(A: Array, B: Array, C: Array, adds: bool) -> Any:
    """The kernel `products_loop` of the table, also for matrices along several axes."""
    if not is_half(A.dtype) or of(A).is_host or A.dtype != B.dtype or C.dtype.name not in TYPES:
        return NotImplemented
    if not C.size:
        return None
    if not A.shape[-1]:
        C[...] = C if adds else 0
        return None
    matrices = _matrices(C)
    if matrices is None:
        contiguous = xp_of(C).ascontiguousarray(C)
        products_loop(A, B, contiguous, adds)
        C[...] = contiguous
    elif not matrices.by_rows:
        products_loop(B.swapaxes(-1, -2), A.swapaxes(-1, -2), C.swapaxes(-1, -2), adds)
    else:
        _multiply(_read(A, C.shape[:-2]), _read(B, C.shape[:-2]), matrices, adds)
    return None


def _matrices(a: Array) -> Matrices | None:
    """The matrices of an array with their order in memory; None if neither rows nor columns lie
    together."""
    rows, columns = a.shape[-2:]
    down, right = (s // a.itemsize for s in a.strides[-2:])
    ld = down if rows > 1 else columns
    if (columns == 1 or right == 1) and ld >= columns:
        return Matrices(a, True, ld)
    ld = right if columns > 1 else rows
    if (rows == 1 or down == 1) and ld >= rows:
        return Matrices(a, False, ld)
    return None


def _read(a: Array, lead: tuple[int, ...]) -> Matrices:
    """The matrices of a factor, broadcast to these axes."""
    xp = xp_of(a)
    matrices = _matrices(xp.broadcast_to(a, (*lead, *a.shape[-2:])))
    return matrices or _read(xp.ascontiguousarray(a), lead)


def _multiply(a: Matrices, b: Matrices, c: Matrices, adds: bool) -> None:
    """Multiply matrices, by one call for all that lie at one distance."""
    xp = xp_of(c.array)
    blas, handle = xp.cuda.cublas, xp.cuda.get_cublas_handle()
    (m, k), n = a.array.shape[-2:], c.array.shape[-1]
    (count, *steps), rest = _batches(c.array.shape[:-2], [x.strides for x in (b, a, c)])
    by_columns = blas.CUBLAS_OP_T, blas.CUBLAS_OP_N  # of a factor that lies by columns, or by rows
    zero, unit = (FACTORS[i:].ctypes.data for i in range(2))
    for offsets in rest:
        given = [
            (x.array.data.ptr + at * x.array.itemsize, _type(x.array), x.ld, step)
            for x, at, step in zip((b, a, c), offsets, steps, strict=True)
        ]
        blas.gemmStridedBatchedEx(
            handle,
            *(by_columns[x.by_rows] for x in (b, a)),
            *(n, m, k, unit, *given[0], *given[1], unit if adds else zero, *given[2]),
            *(count, blas.CUBLAS_COMPUTE_32F, blas.CUBLAS_GEMM_DEFAULT),
        )


def _type(a: Array) -> int:
    """cuBLAS's name of an array's type."""
    return int(getattr(xp_of(a).cuda.runtime, TYPES[a.dtype.name]))


def _batches(
    lead: tuple[int, ...], strides: list[list[int]]
) -> tuple[tuple[int, ...], Iterator[list[int]]]:
    """The count of matrices a call and their distance in each array, for the longest run at one
    distance, and the offsets of each call."""
    axes = list[tuple[int, ...]]()
    for n, *steps in zip(lead, *strides, strict=True):
        if n > 1 and axes and all(o == n * i for o, i in zip(axes[-1][1:], steps, strict=True)):
            axes[-1] = (axes[-1][0] * n, *steps)
        elif n > 1:
            axes.append((n, *steps))
    longest = max(axes, default=(1, *[0] * len(strides)))
    others = [axis for axis in axes if axis is not longest]
    sizes = [axis[0] for axis in others]

    def begins() -> Iterator[list[int]]:
        for at in np.ndindex(*sizes):
            yield [
                sum(i * axis[1 + j] for i, axis in zip(at, others, strict=True))
                for j in range(len(strides))
            ]

    return longest, begins()
