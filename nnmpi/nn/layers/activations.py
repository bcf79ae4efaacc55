"""Activation functions as modules, under PyTorch's names.

With `inplace=True` a layer writes its result to its input, as in PyTorch; in a Trainer it returns a
new tensor.
"""

from functools import partial

from nnmpi.autograd import Tensor, apply, as_tensor, functional, method_functions
from nnmpi.autograd.ops import activations, elementwise
from nnmpi.autograd.ops.activations import gelu_form
from nnmpi.nn.in_place import applied_by_layer
from nnmpi.nn.initial import constant
from nnmpi.nn.layers.basic import check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter

_relu, _silu = partial(apply, elementwise.relu), partial(apply, activations.silu)


class ReLU(Module):
    """Applies max(x, 0) to each element."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return applied_by_layer(_relu, x, self.inplace)


class GELU(Module):
    """Applies x * Phi(x) to each element, where Phi is the distribution function of the standard
    normal.

    With `approximate="tanh"` Phi is approximated by a tanh.
    """

    def __init__(self, approximate: str = "none") -> None:
        gelu_form(approximate)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class LeakyReLU(Module):
    """Applies x where it is positive, and negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope, self.inplace = float(negative_slope), inplace

    def forward(self, x: Tensor) -> Tensor:
        function = partial(functional.leaky_relu, negative_slope=self.negative_slope)
        return applied_by_layer(function, x, self.inplace)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """x where it is positive, else weight * x, with one weight or one per channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        check_sizes("PReLU", 1, num_parameters=num_parameters)
        self.num_parameters = num_parameters
        self.weight = Parameter.lazy((num_parameters,), constant(float(init)))

    def forward(self, x: Tensor) -> Tensor:
        return apply(activations.prelu, as_tensor(x), self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class ELU(Module):
    """Applies x where it is positive, and alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha, self.inplace = float(alpha), inplace

    def forward(self, x: Tensor) -> Tensor:
        function = partial(apply, activations.elu, alpha=self.alpha)
        return applied_by_layer(function, x, self.inplace)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Softplus(Module):
    """Applies log(1 + exp(beta * x)) / beta, or x itself where beta * x is above the threshold."""

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
    """Applies x * sigmoid(x) to each element."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return applied_by_layer(_silu, x, self.inplace)


class Sigmoid(Module):
    """Applies 1 / (1 + exp(-x)) to each element."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(elementwise.sigmoid, as_tensor(x))


class Tanh(Module):
    """Applies the hyperbolic tangent to each element."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(elementwise.tanh, as_tensor(x))


class Softmax(Module):
    """Applies exp(x) / sum(exp(x)) over the axis `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return method_functions.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """Applies log(softmax(x)) over the axis `dim`."""

    def forward(self, x: Tensor) -> Tensor:
        return method_functions.log_softmax(x, self.dim)


class Identity(Module):
    """Returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor(x)


ELEMENTWISE = (ReLU, GELU, LeakyReLU, ELU, Softplus, SiLU, Sigmoid, Tanh, Identity)
"""Layers that act on each element alone: a rank with a part of the elements computes its part."""
