"""Activations as modules."""

from nnmpi.autograd import Tensor, functional
from nnmpi.nn.module import Module


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x)


class GELU(Module):
    """x * Phi(x), with Phi the distribution function of the standard normal."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.tanh(x)


class LogSoftmax(Module):
    """log(softmax(x)) over `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(x, self.dim)
