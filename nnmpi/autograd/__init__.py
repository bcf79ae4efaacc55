"""Automatic differentiation: `Tensor` with its methods, functions of tensors under PyTorch's names,
the tape, and in `ops` the value and the vjps (vector-Jacobian products) of each function of arrays.
Less frequent functions are in the add-on `torchlike`."""

from typing import TYPE_CHECKING, Any

from nnmpi.addons import finder, loaded, names_of
from nnmpi.autograd.recording import no_grad
from nnmpi.autograd.tensor import Tensor, apply, array_of, array_on, as_tensor, on_host

if TYPE_CHECKING:
    from nnmpi.addons.torchlike.functions.custom_function import Function as Function
    from nnmpi.addons.torchlike.functions.differentiation import grad as grad
    from nnmpi.addons.torchlike.functions.grad_modes import enable_grad as enable_grad
    from nnmpi.addons.torchlike.functions.grad_modes import inference_mode as inference_mode
    from nnmpi.addons.torchlike.functions.grad_modes import set_grad_enabled as set_grad_enabled
    from nnmpi.addons.torchlike.functions.gradcheck import gradcheck as gradcheck
    from nnmpi.addons.torchlike.functions.typed import Variable as Variable

__path__ += [finder.ENTRY]

_ON_USE = names_of("nnmpi.autograd")
"""Where the names are that are loaded when they are used first, as in torch.autograd."""


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_USE})


def __getattr__(name: str) -> Any:
    if name in _ON_USE:
        return loaded(_ON_USE[name])
    raise finder.missing(finder.no_name("nnmpi.autograd", name, "autograd", "functions"))


__all__ = ["Tensor", "apply", "array_of", "array_on", "as_tensor", "no_grad", "on_host"]
