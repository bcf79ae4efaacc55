"""Every case of every op, and what a test needs to run one: its leaves and its seed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from helpers.ops.opcases import ELEMENTWISE
from helpers.ops.opcases_choosing import CHOOSING
from helpers.ops.opcases_conv import CONVOLUTIONS
from helpers.ops.opcases_layers import LAYERS
from helpers.ops.opcases_logic import LOGIC
from helpers.ops.opcases_losses import LOSSES
from helpers.ops.opcases_ported import PORTED
from helpers.ops.opcases_shapes import SHAPES

from nnmpi.addons import ADD_ONS
from nnmpi.autograd import Tensor

CASES = ELEMENTWISE | SHAPES | LAYERS | CONVOLUTIONS | LOSSES | LOGIC | PORTED | CHOOSING
OF_ADD_ONS = {
    "attention": "transformer",
    "recurrent": "recurrent",
    "branches": "layer_ways",
    "experts": "layer_ways",
    "functions": "torchlike",
    "more_layers": "torchlike",
}
"""The add-on whose ops a file of cases has."""
for NAME, ADD_ON in OF_ADD_ONS.items():
    if ADD_ON in ADD_ONS:
        CASES |= vars(import_module(f"helpers.ops.opcases_{NAME}"))[NAME.upper()]


def is_leaf(array: Any) -> bool:
    """Whether an argument is one that an op is differentiated by."""
    return getattr(getattr(array, "dtype", None), "kind", "") == "f"


def each(change: Callable[[np.ndarray], Any], value: Any) -> Any:
    """`value` with every NumPy array in it changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, list | tuple):
        parts = [each(change, v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return {k: each(change, v) for k, v in value.items()} if isinstance(value, dict) else value


def single(a: np.ndarray) -> np.ndarray:
    """A leaf in float32; other arrays as they are."""
    return a.astype("float32") if is_leaf(a) else a


def weights(shape: tuple[int, ...]) -> np.ndarray:
    """The gradient that a backward pass starts from, so that each element of the value counts."""
    return np.asarray(np.random.default_rng(1).standard_normal(shape))


def evaluated(
    name: str, change: Callable[[np.ndarray], Any] = np.copy, leaf: type[Tensor] = Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The value of a case's op, and the leaves that it was computed from."""
    case = CASES[name]
    arrays = each(change, case.arrays(name))
    args = [leaf(a, requires_grad=case.has_gradient) if is_leaf(a) else a for a in arrays]
    if not case.has_gradient:
        args[0] = leaf(arrays[0])  # masks and integers are no leaves
    y = case.run(case.op, *args, **each(change, dict(case.options)))
    return y, [a for a in args if isinstance(a, Tensor) and a.requires_grad]
