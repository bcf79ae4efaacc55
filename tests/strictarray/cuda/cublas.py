"""cuBLAS, as far as nnmpi calls it: products of matrices at addresses, computed by NumPy.

Matrices lie by columns; it reads and writes what the arguments say, and nothing else.
"""

import ctypes
from typing import Any

import numpy as np

CUBLAS_OP_N, CUBLAS_OP_T = range(2)
CUBLAS_COMPUTE_32F = 68
CUBLAS_GEMM_DEFAULT = -1
HANDLE = 4711
TYPES = {0: "float32", 2: "float16", 14: "bfloat16"}

calls: list[tuple[int, ...]] = []
"""(m, n, k, matrices) of each call, as cuBLAS counts them."""


def gemmStridedBatchedEx(*args: int) -> None:  # noqa: N802 (CuPy's name)
    """As CuPy's, which has all by position."""
    handle, transa, transb, m, n, k, alpha, *others = args
    a, b, (beta, *c) = others[:4], others[4:8], others[8:13]
    count, compute, algorithm = others[13:]
    if any(not isinstance(value, int) for value in args):
        raise TypeError("gemmStridedBatchedEx takes integers")
    if (handle, compute, algorithm) != (HANDLE, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT):
        raise ValueError("another handle, or another way to compute")
    if a[1] != b[1] or a[1] == 0 or c[1] not in (0, a[1]):
        raise ValueError(f"CUBLAS_STATUS_NOT_SUPPORTED: types {a[1]}, {b[1]}, {c[1]}")
    left = matrices(a, (k, m) if transa else (m, k), count)
    right = matrices(b, (n, k) if transb else (k, n), count)
    out = matrices(c, (m, n), count)
    left, right = (
        x.astype(np.float32).swapaxes(-1, -2) if t else x.astype(np.float32)
        for x, t in ((left, transa), (right, transb))
    )
    found = number(alpha) * (left @ right)
    with np.errstate(all="ignore"):
        out[...] = found + number(beta) * out.astype(np.float32) if number(beta) else found
    calls.append((m, n, k, count))


def number(address: int) -> np.float32:
    """What is at an address."""
    return np.ctypeslib.as_array((ctypes.c_float * 1).from_address(address))[0]


def matrices(where: Any, shape: tuple[int, int], count: int) -> np.ndarray:
    """So many matrices by columns: (count, rows, columns)."""
    address, kind, ld, step = where
    rows, columns = shape
    if ld < rows or min(rows, columns, count) < 1:
        raise ValueError(f"CUBLAS_STATUS_INVALID_VALUE: ld {ld} of {rows} x {columns}")
    dtype = np.dtype(TYPES[kind])
    numbers = (count - 1) * step + (columns - 1) * ld + rows
    memory = (ctypes.c_byte * (numbers * dtype.itemsize)).from_address(address)
    strides = [dtype.itemsize * n for n in (step, 1, ld)]
    return np.ndarray((count, rows, columns), dtype, memory, strides=strides)
