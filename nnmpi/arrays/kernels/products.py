"""Products of matrices, several at a time."""

from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.precision import on_device_in_16_bits
from nnmpi.arrays.native.table import InOut, kernel


@kernel
def products_loop(A: Array, B: Array, C: InOut, adds: bool) -> None:
    """C[g] = A[g] @ B[g] for each g, or += if it adds; C may be in the type of sums."""
    if adds:
        C += xp_of(A).matmul(A, B)
    else:
        xp_of(A).matmul(A, B, out=C)


def dot(a: Array, b: Array, out: Array) -> None:
    """out = a @ b of two matrices, by the policy of types."""
    if on_device_in_16_bits(a):  # CuPy multiplies and sums one row by one column in 16 bits
        products_loop(a, b, out, False)
    else:
        xp_of(a).dot(a, b, out=out)


def matmul(a: Array, b: Array, dtype: Any = None) -> Array:
    """a @ b of matrices, or several of them, in `dtype`, by default that of a; on a device
    factors are read as they are, and added up in the type of sums."""
    xp = xp_of(a)
    if min(a.ndim, b.ndim) < 2 or not on_device_in_16_bits(a):
        found: Array = xp.matmul(a, b)
        return found if dtype is None else found.astype(dtype, copy=False)
    lead = xp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    c = xp.empty((*lead, a.shape[-2], b.shape[-1]), dtype or a.dtype)
    products_loop(a, b, c, False)
    return c
