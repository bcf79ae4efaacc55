"""PyTorch's activations made of other ops, such as ReLU6 and SELU: functions and layers."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from nnmpi.addons.torchlike.ops import more_activations
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops import activations
from nnmpi.nn.in_place import applied, applied_by_layer
from nnmpi.nn.module import Module

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def hardtanh(
    input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Returns x limited to [min_val, max_val]; the gradient at both ends is 0."""
    return applied(_limit(min_val, max_val), input, inplace)


def relu6(input: Any, inplace: bool = False) -> Tensor:
    """Returns x limited to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardsigmoid(input: Any, inplace: bool = False) -> Tensor:
    """Returns x / 6 + 1/2, limited to [0, 1]."""
    return applied(_hardsigmoid, input, inplace)


def hardswish(input: Any, inplace: bool = False) -> Tensor:
    """Returns x * hardsigmoid(x)."""
    return applied(_hardswish, input, inplace)


def selu(input: Any, inplace: bool = False) -> Tensor:
    """scale * elu(x), for which mean 0 and variance 1 are a fixed point."""
    return applied(_selu, input, inplace)


def _limit(low: float, high: float) -> Callable[[Tensor], Tensor]:
    """Returns a function that limits each element of a tensor to [low, high]."""
    if low >= high:
        raise ValueError(f"hardtanh: min_val={low} must be below max_val={high}")
    return partial(apply, more_activations.hardtanh, low=float(low), high=float(high))


_relu6 = _limit(0.0, 6.0)


def _hardsigmoid(x: Tensor) -> Tensor:
    y: Tensor = _relu6(x + 3.0) / 6.0
    return y


def _hardswish(x: Tensor) -> Tensor:
    return x * _hardsigmoid(x)


def _selu(x: Tensor) -> Tensor:
    return apply(activations.elu, x, alpha=SELU_ALPHA) * SELU_SCALE


def _softplus(input: Any) -> Tensor:
    """Returns log(1 + exp(x))."""
    return apply(activations.softplus, as_tensor(input), beta=1.0, threshold=math.inf)


def logsigmoid(input: Any) -> Tensor:
    """Returns log(sigmoid(x))."""
    return -_softplus(-as_tensor(input))


def mish(input: Any, inplace: bool = False) -> Tensor:
    """Returns x * tanh(softplus(x))."""
    return applied(_mish, input, inplace)


def _mish(x: Tensor) -> Tensor:
    y: Tensor = x * _softplus(x).tanh()
    return y


def softsign(input: Any) -> Tensor:
    """Returns x / (1 + |x|)."""
    x = as_tensor(input)
    y: Tensor = x / (1.0 + x.abs())
    return y


class _Plain(Module):
    """The base class of activations whose only option is `inplace`."""

    function: Callable[..., Tensor]

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return applied_by_layer(type(self).function, x, self.inplace)


class ReLU6(_Plain):
    """Limits each element to [0, 6]."""

    function = staticmethod(relu6)


class Hardsigmoid(_Plain):
    """Applies x / 6 + 1/2, limited to [0, 1], to each element."""

    function = staticmethod(hardsigmoid)


class Hardswish(_Plain):
    """Applies x * hardsigmoid(x) to each element."""

    function = staticmethod(hardswish)


class SELU(_Plain):
    """scale * elu(x), for which mean 0 and variance 1 are a fixed point."""

    function = staticmethod(selu)


class Mish(_Plain):
    """Applies x * tanh(softplus(x)) to each element."""

    function = staticmethod(mish)


class LogSigmoid(_Plain):
    """Applies log(sigmoid(x)) to each element."""

    function = staticmethod(logsigmoid)

    def __init__(self) -> None:
        super().__init__()


class Softsign(_Plain):
    """Applies x / (1 + |x|) to each element."""

    function = staticmethod(softsign)

    def __init__(self) -> None:
        super().__init__()


class Hardtanh(Module):
    """Limits each element to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val, self.max_val, self.inplace = float(min_val), float(max_val), inplace

    def forward(self, x: Tensor) -> Tensor:
        return applied_by_layer(_limit(self.min_val, self.max_val), x, self.inplace)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"
