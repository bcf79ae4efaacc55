"""Products of matrices, several at a time."""

from nnmpi.backend import Array, xp_of
from nnmpi.kernels.halves import cast
from nnmpi.native.table import InOut, kernel


@kernel
def products_loop(A: Array, B: Array, C: InOut, adds: bool) -> None:
    """C[g] = A[g] @ B[g] for each g, or += if it adds; of 16 bits C may be in float32."""
    if A.dtype.name == "bfloat16":  # CuPy has no product of several matrices in it
        A, B = cast(A, "float32"), cast(B, "float32")
        C[...] = xp_of(A).matmul(A, B) + (C if adds else 0)
    elif adds:
        C += xp_of(A).matmul(A, B)
    else:
        xp_of(A).matmul(A, B, out=C)
