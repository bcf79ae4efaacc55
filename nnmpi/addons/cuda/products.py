"""Matrix products by cuBLAS, of stacks of matrices; with 16-bit factors, sums are in float32.

CuPy 14.2 copies 16-bit matrices to float32 first, has no products of bfloat16, and refuses to call
cuBLAS while a CUDA graph is captured. Here matrices are read in place: cuBLAS takes column-major
matrices, so to it a row-major matrix is its own transpose, and

    C = A B    is computed as    C^T = B^T A^T
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.cuda.launch import compiles
from nnmpi.addons.cuda.tf32 import allows_tf32
from nnmpi.arrays.backend import Array, xp_of

TYPES = {
    "float16": "CUDA_R_16F",
    "bfloat16": "CUDA_R_16BF",
    "float32": "CUDA_R_32F",
    "float64": "CUDA_R_64F",
}
FACTORS = {name: np.array([0, 1], name) for name in ("float32", "float64")}
"""The factors alpha and beta of a GEMM, in the dtype of its sums; cuBLAS takes their addresses."""

_MATRIX = ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_longlong
_ARGUMENTS = (
    *(ctypes.c_void_p, *[ctypes.c_int] * 5, ctypes.c_void_p, *_MATRIX, *_MATRIX),
    *(ctypes.c_void_p, *_MATRIX, *[ctypes.c_int] * 3),
)


class Matrices(NamedTuple):
    """A stack of matrices as cuBLAS takes it; `ld` is the leading dimension."""

    array: Array
    by_rows: bool
    ld: int

    @property
    def strides(self) -> list[int]:
        """The distance in elements between matrices along each leading axis."""
        return [s // self.array.itemsize for s in self.array.strides[:-2]]


def products_loop(A: Array, B: Array, C: Array, adds: bool) -> Any:
    """Writes C = A @ B for stacks of matrices by cuBLAS, or adds the products to C if `adds`.

    The stack may have several axes. Returns NotImplemented for dtypes that it does not support, as
    all CUDA kernels do.
    """
    a, b, c = (x.dtype.name for x in (A, B, C))
    known = a in TYPES and a == b and (c == a or (c == "float32" and a != "float64"))
    if not known or not compiles(xp_of(A)):
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
    """Returns an array as matrices, or None if its last axes are not dense."""
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
    """Returns a factor's matrices, copied only if their order requires it."""
    xp = xp_of(a)
    matrices = _matrices(xp.broadcast_to(a, (*lead, *a.shape[-2:])))
    return matrices or _read(xp.ascontiguousarray(a), lead)


def _multiply(a: Matrices, b: Matrices, c: Matrices, adds: bool) -> None:
    """Writes a @ b for stacks of matrices to c, or adds it to c if `adds`; one cuBLAS call takes
    all matrices that are at a constant distance in memory."""
    xp = xp_of(c.array)
    blas, handle = xp.cuda.cublas, xp.cuda.get_cublas_handle()
    (m, k), n = a.array.shape[-2:], c.array.shape[-1]
    (count, *steps), rest = _batches(c.array.shape[:-2], [x.strides for x in (b, a, c)])
    # a row-major factor is its transpose to cuBLAS, which computes C^T: no transposition
    transposition = blas.CUBLAS_OP_T, blas.CUBLAS_OP_N
    sums, compute = "float32", blas.CUBLAS_COMPUTE_32F
    if a.array.dtype == "float64":
        sums, compute = "float64", blas.CUBLAS_COMPUTE_64F
    elif a.array.dtype == "float32" and allows_tf32(xp):
        compute = blas.CUBLAS_COMPUTE_32F_FAST_TF32
    zero, one = (FACTORS[sums][i:].ctypes.data for i in range(2))
    gemm = _gemm(xp, xp.cuda.get_current_stream(), handle)
    for offsets in rest:
        operands = [
            (x.array.data.ptr + at * x.array.itemsize, _type(x.array), x.ld, step)
            for x, at, step in zip((b, a, c), offsets, steps, strict=True)
        ]
        gemm(
            handle,
            *(transposition[x.by_rows] for x in (b, a)),
            *(n, m, k, one, *operands[0], *operands[1], one if adds else zero, *operands[2]),
            *(count, compute, blas.CUBLAS_GEMM_DEFAULT),
        )


def _gemm(xp: Any, stream: Any, handle: int) -> Callable[..., object]:
    """Returns cuBLAS's function for matrix products: CuPy's form of it, or the function of the
    library itself while the stream captures a CUDA graph, when CuPy's raises an error."""
    if not stream.is_capturing():
        gemm: Callable[..., object] = xp.cuda.cublas.gemmStridedBatchedEx
        return gemm
    library = _library(xp)
    library.cublasSetStream_v2(ctypes.c_void_p(handle), ctypes.c_void_p(stream.ptr))

    def checked(*arguments: Any) -> None:
        if status := library.cublasGemmStridedBatchedEx(*arguments):
            raise RuntimeError(f"cuBLAS error {status} in a product that a graph is to contain")

    return checked


@lru_cache(maxsize=1)
def _library(xp: Any) -> Any:
    """Returns the cuBLAS library that CuPy has loaded."""
    library: Any = ctypes.CDLL(xp.cuda.cublas.__file__)
    library.cublasGemmStridedBatchedEx.argtypes = _ARGUMENTS
    return library


def _type(a: Array) -> int:
    """Returns cuBLAS's number for the dtype of an array, an argument of its functions."""
    return int(getattr(xp_of(a).cuda.runtime, TYPES[a.dtype.name]))


def _batches(
    lead: tuple[int, ...], strides: list[list[int]]
) -> tuple[tuple[int, ...], Iterator[list[int]]]:
    """Splits products of stacks of matrices into cuBLAS calls, each of which takes matrices at
    equal distances.

    `lead` are the lengths of the stack's axes; `strides` has for each array the distances between
    matrices along these axes. Returns (batch, begins): `batch` is (the number of matrices of each
    call, their distance in each array...), and `begins` yields for each call the offsets of its
    first matrices, one for each array.
    """
    axes = list[tuple[int, ...]]()
    for n, *distances in zip(lead, *strides, strict=True):
        # axes that continue each other at one distance in all arrays are one axis
        if n > 1 and axes and all(o == n * i for o, i in zip(axes[-1][1:], distances, strict=True)):
            axes[-1] = (axes[-1][0] * n, *distances)
        elif n > 1:
            axes.append((n, *distances))
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
