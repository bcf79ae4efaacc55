"""Automatic differentiation: tensors, the tape and differentiable ops.

Here: `Tensor` and its methods, functions of tensors under PyTorch's names, the tape that
`backward` follows, and in `ops` the value and the vjps of each function of arrays.
Not here: loops over arrays (`arrays.kernels`), parameters and layers (`nn`).
"""

from nnmpi.autograd.recording import no_grad
from nnmpi.autograd.tensor import Tensor, apply, array_of, array_on, as_tensor, on_host

__all__ = ["Tensor", "apply", "array_of", "array_on", "as_tensor", "no_grad", "on_host"]
