"""Matrix products by cuBLAS, of stacks of matrices; with 16-bit factors, sums are in float32.

CuPy 14.2 copies 16-bit matrices to float32 first, has no products of bfloat16, and refuses to call
cuBLAS while a CUDA graph is captured. Here matrices are read in place: cuBLAS takes column-major
matrices, so to it a row-major matrix is its own transpose, and

    C = A B    is computed as    C^T = B^T A^T
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
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


Layout = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]
"""The shape of an array, its strides in bytes, and its dtype."""


class Matrices(NamedTuple):
    """A stack of matrices as cuBLAS takes it, in elements: `ld` is the leading dimension, and
    `steps` are the distances between matrices along each leading axis."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_rows: bool
    ld: int
    steps: list[int]


class Calls(NamedTuple):
    """The arguments of cuBLAS calls that differ only in where their matrices begin.

    sizes     the arguments before the first address
    first, second, result
              the arguments that follow the addresses of the factors and of the result
    offsets   for each call: where its matrices begin, in bytes from the addresses of the arrays
    """

    sizes: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    result: tuple[int, ...]
    offsets: list[list[int]]


class Plan(NamedTuple):
    """How cuBLAS computes the products of arrays of certain layouts.

    copied   which of A, B and C (0, 1 and 2) are copied first: cuBLAS does not take their layouts
    order    which of them are cuBLAS's factors and its result
    """

    copied: list[int]
    order: tuple[int, int, int]
    calls: Calls


def products_loop(A: Array, B: Array, C: Array, adds: bool) -> Any:
    """Writes C = A @ B for stacks of matrices by cuBLAS, or adds the products to C if `adds`.

    The stack may have several axes. Returns NotImplemented for dtypes that it does not support, as
    all CUDA kernels do.
    """
    xp = xp_of(A)
    if not compiles(xp):
        return NotImplemented
    a, b = (A.shape, A.strides, A.dtype), (B.shape, B.strides, B.dtype)
    plan = _plan(xp, a, b, (C.shape, C.strides, C.dtype), adds, allows_tf32(xp))
    if plan is None:
        return NotImplemented
    if not C.size:
        return None
    if not A.shape[-1]:
        C[...] = C if adds else 0
        return None
    arrays = [A, B, C]
    for i in plan.copied:
        arrays[i] = xp.ascontiguousarray(arrays[i])
    first, second, result = [arrays[i].data.ptr for i in plan.order]
    handle = xp.cuda.get_cublas_handle()  # of this thread on this device
    gemm = _gemm(xp, xp.cuda.get_current_stream(), handle)
    sizes, of_first, of_second, of_result, offsets = plan.calls
    for i, j, k in offsets:
        factors = first + i, *of_first, second + j, *of_second
        gemm(handle, *sizes, *factors, result + k, *of_result)
    if arrays[2] is not C:
        C[...] = arrays[2]
    return None


@lru_cache(maxsize=4096)
def _plan(xp: Any, A: Layout, B: Layout, C: Layout, adds: bool, tf32: bool) -> Plan | None:
    """Returns the cuBLAS calls for arrays of these layouts, or None for dtypes that cuBLAS does not
    multiply. They are kept, since the host computes them more slowly than it makes the calls."""
    a, b, c = (dtype.name for _, _, dtype in (A, B, C))
    if a not in TYPES or a != b or (c != a and (c != "float32" or a == "float64")):
        return None
    layouts, lead = [A, B, C], C[0][:-2]
    copied = [i for i, layout in enumerate(layouts) if _matrices(layout, lead) is None]
    for i in copied:
        layouts[i] = _contiguous(layouts[i])
    result, order = _matrices(layouts[2], lead), (1, 0, 2)
    if result is not None and not result.by_rows:
        order, layouts = (0, 1, 2), [_transposed(layout) for layout in layouts]
    stacks = [stack for i in order if (stack := _matrices(layouts[i], lead)) is not None]
    return Plan(copied, order, _calls(xp, stacks, lead, adds, tf32))


def _matrices(layout: Layout, lead: tuple[int, ...]) -> Matrices | None:
    """Returns how cuBLAS takes a stack of matrices that is repeated to the leading axes `lead`;
    None if their last axes are not dense."""
    shape, strides, dtype = layout
    rows, columns = shape[-2:]
    *between, down, right = (s // dtype.itemsize for s in strides)
    once = [0] * (len(lead) - len(between))
    steps = once + [0 if n == 1 else step for n, step in zip(shape, between, strict=False)]
    ld = down if rows > 1 else columns
    if (columns == 1 or right == 1) and ld >= columns:
        return Matrices(shape[-2:], dtype, True, ld, steps)
    ld = right if columns > 1 else rows
    if (rows == 1 or down == 1) and ld >= rows:
        return Matrices(shape[-2:], dtype, False, ld, steps)
    return None


def _contiguous(layout: Layout) -> Layout:
    """Returns the layout of a copy without gaps, in the order of the axes."""
    shape, _, dtype = layout
    return shape, tuple(dtype.itemsize * prod(shape[i + 1 :]) for i in range(len(shape))), dtype


def _transposed(layout: Layout) -> Layout:
    """Returns the layout of the transposes of the matrices."""
    shape, strides, dtype = layout
    return (*shape[:-2], *shape[:-3:-1]), (*strides[:-2], *strides[:-3:-1]), dtype


def _calls(xp: Any, stacks: list[Matrices], lead: tuple[int, ...], adds: bool, tf32: bool) -> Calls:
    """Returns the cuBLAS calls for `stacks`, which are B, A and C of C = A B, with C by rows. One
    call computes all matrices that are at a constant distance in memory."""
    # to cuBLAS a row-major matrix is its transpose, so that it computes C^T = B^T A^T
    b, a, c = stacks
    blas, kind = xp.cuda.cublas, a.dtype.name
    sums, compute = "float32", blas.CUBLAS_COMPUTE_32F
    if kind == "float64":
        sums, compute = "float64", blas.CUBLAS_COMPUTE_64F
    elif kind == "float32" and tf32:
        compute = blas.CUBLAS_COMPUTE_32F_FAST_TF32
    zero, unit = (FACTORS[sums][i:].ctypes.data for i in range(2))
    transpositions = ((blas.CUBLAS_OP_T, blas.CUBLAS_OP_N)[x.by_rows] for x in (b, a))
    (count, *steps), begins = _batches(lead, [x.steps for x in stacks])
    first, second, result = (
        (int(getattr(xp.cuda.runtime, TYPES[x.dtype.name])), x.ld, step)
        for x, step in zip(stacks, steps, strict=True)
    )
    return Calls(
        (*transpositions, c.shape[1], *a.shape, unit),
        first,
        (*second, unit if adds else zero),
        (*result, count, compute, blas.CUBLAS_GEMM_DEFAULT),
        [[at * x.dtype.itemsize for at, x in zip(i, stacks, strict=True)] for i in begins],
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
