"""Activations as modules.

Those with `inplace` take it as in PyTorch, and write nothing in place.
"""

from nnmpi.autograd import Tensor, apply, as_tensor, functional, method_functions
from nnmpi.autograd.ops import activations, elementwise
from nnmpi.autograd.ops.activations import gelu_form
from nnmpi.nn.init import constant
from nnmpi.nn.layers.basic import check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class ReLU(Module):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return apply(elementwise.relu, as_tensor(x))


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

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope, self.inplace = float(negative_slope), inplace

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """x where it is positive, weight * x elsewhere: one weight, or one of each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        check_sizes("PReLU", 1, num_parameters=num_parameters)
        self.num_parameters = num_parameters
        self.weight = Parameter.drawn((num_parameters,), constant(float(init)))

    def forward(self, x: Tensor) -> Tensor:
        return apply(activations.prelu, as_tensor(x), self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class ELU(Module):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha, self.inplace = float(alpha), inplace

    def forward(self, x: Tensor) -> Tensor:
        return apply(activations.elu, as_tensor(x), alpha=self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        if not beta:
            raise ValueError("Softplus: beta=0 divides by 0; give another number, like 1")
        self.beta, self.threshold = float(beta), float(threshold)

    def forward(self, x: Tensor) -> Tensor:
        options = {"beta": self.beta, "threshold": self.threshold}
        return apply(activations.softplus, as_tensor(x), **options)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class SiLU(Module):
    """x * sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return apply(activations.silu, as_tensor(x))


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(elementwise.sigmoid, as_tensor(x))


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(elementwise.tanh, as_tensor(x))


class Softmax(Module):
    """exp(x) / sum(exp(x)) over `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return method_functions.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """log(softmax(x)) over `dim`."""

    def forward(self, x: Tensor) -> Tensor:
        return method_functions.log_softmax(x, self.dim)


class Identity(Module):
    """x itself."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor(x)


ELEMENTWISE = (ReLU, GELU, LeakyReLU, ELU, Softplus, SiLU, Sigmoid, Tanh, Identity)
"""Layers that treat each number alone: a rank with a part of the numbers computes its part."""
