"""Products of matrices, several at a time."""

from nnmpi.backend import Array, xp_of
from nnmpi.native.table import InOut, kernel


@kernel
def products_loop(A: Array, B: Array, C: InOut, adds: bool) -> None:
    """C[g] = A[g] @ B[g] for each g, or += if it adds; of 16 bits C may be in float32."""
    if adds:
        C += xp_of(A).matmul(A, B)
    else:
        xp_of(A).matmul(A, B, out=C)
