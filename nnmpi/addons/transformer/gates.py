"""Activations whose channels are pairs of a gate and a value."""

from nnmpi.addons.transformer.ops import gates
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.nn.module import Module


class SwiGLU(Module):
    """Returns silu(gate) * up, (..., n), of x (..., 2 n), in which the gate and the value of each
    output are side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(gates.swiglu, as_tensor(x))
