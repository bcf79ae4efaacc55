"""Automatic differentiation: tensors, the tape and differentiable ops."""

from nnmpi.autograd.recording import no_grad
from nnmpi.autograd.tensor import Tensor, apply

__all__ = ["Tensor", "apply", "no_grad"]
