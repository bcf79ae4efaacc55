"""Automatic differentiation: tensors, the tape and differentiable ops."""

from nnmpi.autograd.recording import no_grad
from nnmpi.autograd.tensor import Tensor, apply, array_of, array_on, as_tensor, on_host

__all__ = ["Tensor", "apply", "array_of", "array_on", "as_tensor", "no_grad", "on_host"]
