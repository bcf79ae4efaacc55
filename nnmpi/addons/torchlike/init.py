"""PyTorch's `nn.init`: functions that write initial values into parameters and tensors.

The values that `uniform_` and the others write depend on the seed and the path of a parameter in
its model, as the initial values of layers do, and on nothing else:

    a parameter        key(seed, "init", path), and the index of an element in the whole tensor
    any other tensor   key(seed, "init", "", number), where the number counts the modules and
                       tensors made before it; the seed is that of `nnmpi.seeded`, or 0
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nnmpi.addons import finder
from nnmpi.arrays import backend, keyed
from nnmpi.arrays.keyed import Key
from nnmpi.arrays.meta.log import call_log
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.autograd import Tensor, no_grad
from nnmpi.nn.initial import ROW
from nnmpi.nn.initial import constant as constant  # pickles of modules have these names here
from nnmpi.nn.initial import fan_in as fan_in
from nnmpi.nn.initial import normal as normal
from nnmpi.nn.initial import uniform as uniform
from nnmpi.nn.initial import zero_within as zero_within
from nnmpi.nn.parameter import Init, Parameter
from nnmpi.nn.parameter_data import ParameterData
from nnmpi.nn.seeding import next_seed_state

T = TypeVar("T", bound=Tensor)


@dataclass(frozen=True)
class orthogonal:  # noqa: N801
    """Values with orthogonal rows, or columns, of length `gain`; ranks compute the whole matrix."""

    rows: int
    columns: int
    gain: float

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        all_indices = np.arange(self.rows * self.columns)
        values = keyed.normal(key, all_indices, ROW).reshape(self.rows, self.columns)
        is_wide = self.rows < self.columns
        q, r = np.linalg.qr(values.T if is_wide else values)
        q = q * np.sign(np.diag(r))  # without it, q would not be uniformly distributed
        return np.asarray((q.T if is_wide else q).reshape(-1)[index] * self.gain)


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0) -> T:
    """Fills the tensor with values that are uniform on (a, b)."""
    return _fill("uniform_", tensor, uniform((b - a) / 2, (a + b) / 2))


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Fills the tensor with normal values of this mean and standard deviation."""
    return _fill("normal_", tensor, normal(std, mean))


def trunc_normal_(
    tensor: T, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> T:
    """Fills the tensor with normal values, drawing those outside [a, b] again."""
    low, high = ((v - mean) / (std * math.sqrt(2)) for v in (a, b))
    share = (math.erf(high) - math.erf(low)) / 2
    if share < 0.01:
        raise ValueError(
            f"trunc_normal_: [{a}, {b}] has {max(share, 0):.2g} of the normal distribution with "
            f"mean {mean} and standard deviation {std}; give an interval with at least 0.01 of it"
        )
    return _fill("trunc_normal_", tensor, normal(std, mean, a, b))


def constant_(tensor: T, val: float) -> T:
    """Fills the tensor with one value."""
    return _fill("constant_", tensor, constant(float(val)))


def ones_(tensor: T) -> T:
    """Fills the tensor with 1."""
    return _fill("ones_", tensor, constant(1.0))


def zeros_(tensor: T) -> T:
    """Fills the tensor with 0."""
    return _fill("zeros_", tensor, constant(0.0))


def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Fills uniformly within gain * sqrt(6 / (fan_in + fan_out)) (Glorot)."""
    bound = gain * math.sqrt(6 / max(sum(fans("xavier_uniform_", tensor)), 1))
    return _fill("xavier_uniform_", tensor, uniform(bound))


def xavier_normal_(tensor: T, gain: float = 1.0) -> T:
    """Fills with deviation gain * sqrt(2 / (fan_in + fan_out)) (Glorot)."""
    std = gain * math.sqrt(2 / max(sum(fans("xavier_normal_", tensor)), 1))
    return _fill("xavier_normal_", tensor, normal(std))


def kaiming_uniform_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Fills the tensor uniformly within gain * sqrt(3 / fan), for ReLU and the like (He). `a` is
    the slope of a leaky ReLU, `mode` one of "fan_in" and "fan_out"."""
    std = _kaiming("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return _fill("kaiming_uniform_", tensor, uniform(std * math.sqrt(3)))


def kaiming_normal_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Fills the tensor with normal values of deviation gain / sqrt(fan), for ReLU and the like
    (He). `a` is the slope of a leaky ReLU, `mode` one of "fan_in" and "fan_out"."""
    std = _kaiming("kaiming_normal_", tensor, a, mode, nonlinearity)
    return _fill("kaiming_normal_", tensor, normal(std))


def orthogonal_(tensor: T, gain: float = 1.0) -> T:
    """Fills with orthogonal rows (one per output) or columns of length `gain` (Saxe)."""
    of = tensor.parameter if isinstance(tensor, ParameterData) else tensor
    rows, *rest = of.place.shape if isinstance(of, Parameter) else of.shape or (0,)
    if not rest:
        raise ValueError(
            f"orthogonal_: a tensor of shape {of.shape} is no matrix; it needs two axes or more"
        )
    return _fill("orthogonal_", tensor, orthogonal(rows, math.prod(rest), gain))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Returns the factor of initial weights that keeps the scale from layer to layer before an
    activation; `param` is the slope of a leaky ReLU."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in GAINS:
        raise ValueError(
            f"calculate_gain: nonlinearity {nonlinearity!r} must be one of {', '.join(GAINS)}, "
            "leaky_relu"
        )
    return GAINS[nonlinearity]


GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv_transpose2d", "sigmoid"), 1.0),
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 3 / 4,
}
"""The gains of nonlinearities without a parameter."""


def fans(name: str, tensor: Tensor) -> tuple[int, int]:
    """Returns (fan_in, fan_out) of the whole weight (out, in, ...), also of a part."""
    of = tensor.parameter if isinstance(tensor, ParameterData) else tensor
    shape = of.place.shape if isinstance(of, Parameter) else of.shape
    if len(shape) < 2:
        raise ValueError(
            f"{name}: a tensor of shape {shape} has no fan; it needs two axes or more, (out, in, "
            "...): use normal_, uniform_ or zeros_ for a bias"
        )
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _kaiming(name: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """Returns gain / sqrt(fan), the deviation of `kaiming_uniform_` and `kaiming_normal_`."""
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"{name}: mode {mode!r} must be one of fan_in, fan_out")
    fan = fans(name, tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def _fill(name: str, tensor: T, init: Init) -> T:
    """Writes initial values into a tensor; those of a parameter are drawn when needed."""
    parameter = tensor.parameter if isinstance(tensor, ParameterData) else tensor
    if isinstance(parameter, Parameter):
        parameter.redraw(init)
        return tensor
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name}: takes a Parameter or a Tensor, not a {type(tensor).__name__}: give "
            "layer.weight, or nnmpi.tensor(array)"
        )
    if call_log.get() is not None:  # replays would write the same numbers each time
        refuse(f"{name} (nnmpi.randn and nnmpi.rand can be recorded)")
    drawn = next_seed_state()
    values = init(keyed.key(drawn.seed, "init", "", drawn.number), np.arange(tensor.size))
    with no_grad():
        tensor[...] = backend.of(tensor.array).asarray(values.reshape(tensor.shape), tensor.dtype)
    return tensor


if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.nn.init", "nn.init")
