"""Automatic differentiation: tensors, the tape and differentiable ops.

Here: `Tensor` and its methods, functions of tensors under PyTorch's names, the tape that
`backward` follows, and in `ops` the value and the vjps of each function of arrays.
Not here: loops over arrays (`arrays.kernels`), parameters and layers (`nn`).
"""

from typing import TYPE_CHECKING, Any

from nnmpi.addons import loaded
from nnmpi.autograd.recording import no_grad
from nnmpi.autograd.tensor import Tensor, apply, array_of, array_on, as_tensor, on_host

if TYPE_CHECKING:
    from nnmpi.autograd.check import gradcheck as gradcheck
    from nnmpi.autograd.differentiation import grad as grad
    from nnmpi.autograd.function import Function as Function
    from nnmpi.autograd.grad_modes import enable_grad as enable_grad
    from nnmpi.autograd.grad_modes import inference_mode as inference_mode
    from nnmpi.autograd.grad_modes import set_grad_enabled as set_grad_enabled

_ON_USE = {
    "Function": "function",
    "enable_grad": "grad_modes",
    "grad": "differentiation",
    "gradcheck": "check",
    "inference_mode": "grad_modes",
    "set_grad_enabled": "grad_modes",
}
"""Where the names are that are loaded when they are used first, as in torch.autograd."""


def __getattr__(name: str) -> Any:
    if name in _ON_USE:
        return loaded(f"nnmpi.autograd.{_ON_USE[name]}:{name}")
    raise AttributeError(f"module 'nnmpi.autograd' has no attribute {name!r}")


__all__ = ["Tensor", "apply", "array_of", "array_on", "as_tensor", "no_grad", "on_host"]
