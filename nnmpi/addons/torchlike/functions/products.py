"""Sums of products of elements under PyTorch's names: einsum, outer and Kronecker products."""

from typing import Any

from nnmpi.addons.torchlike.ops import einsum as ops
from nnmpi.autograd.functional import as_tensors, at_least_one
from nnmpi.autograd.ops import elementwise
from nnmpi.autograd.tensor import Tensor, apply


def einsum(equation: str, *tensors: Any) -> Tensor:
    """The sum of products of an equation of letters, as einsum("bij,bjk->bik", a, b)."""
    operands = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    if not isinstance(equation, str):
        raise TypeError('einsum: write the letters first, as in einsum("ij,jk->ik", a, b)')
    return apply(ops.einsum, *at_least_one("einsum", operands), equation=equation)


def outer(a: Any, b: Any) -> Tensor:
    """The products of all pairs of elements of two vectors."""
    a, b = as_tensors(a, b)
    return apply(elementwise.multiply, a.unsqueeze(1), b)


def kron(a: Any, b: Any) -> Tensor:
    """The Kronecker product: for matrices, the block matrix with the blocks a[i, j] * b."""
    a, b = as_tensors(a, b)
    ndim = max(a.ndim, b.ndim)
    of_a, of_b = ((1,) * (ndim - t.ndim) + t.shape for t in (a, b))
    left = a.reshape([k for n in of_a for k in (n, 1)])
    right = b.reshape([k for n in of_b for k in (1, n)])
    result: Tensor = (left * right).reshape([m * n for m, n in zip(of_a, of_b, strict=True)])
    return result
