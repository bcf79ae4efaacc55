"""Activations as modules."""

from nnmpi.autograd import Tensor, functional
from nnmpi.autograd.ops.activations import gelu_form
from nnmpi.nn.module import Module


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x)


class GELU(Module):
    """x * Phi(x), with Phi the distribution function of the standard normal.

    `approximate="tanh"`: the approximation with a tanh instead.
    """

    def __init__(self, approximate: str = "none") -> None:
        gelu_form(approximate)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class LeakyReLU(Module):
    """x where it is positive, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = float(negative_slope)

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.tanh(x)


class Softmax(Module):
    """exp(x) / sum(exp(x)) over `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """log(softmax(x)) over `dim`."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(x, self.dim)


class Identity(Module):
    """x itself."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.as_tensor(x)


ELEMENTWISE = (ReLU, GELU, LeakyReLU, SiLU, Sigmoid, Tanh, Identity)
"""Layers that treat each number alone: a rank with a part of the numbers computes its part."""
