"""Automatic differentiation: tensors, the tape, and the ops on either side of it."""

from nnmpi.autograd.recording import no_grad
from nnmpi.autograd.tensor import Tensor, apply

__all__ = ["Tensor", "apply", "no_grad"]
