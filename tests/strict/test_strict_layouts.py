"""Elementwise ops on a device keep the order of memory, as they do on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.device import moved, needs_device

from nnmpi.autograd.ops import activations, elementwise, logic, shape
from nnmpi.kernels import Result

pytestmark = needs_device
ROW = np.linspace(1, 2, 3, dtype=np.float32).reshape(3, 1, 1)
PLAIN = ["negative", "exp", "log", "sqrt", "absolute", "sin", "cos", "tanh", "sigmoid", "relu"]
OF_ONE: dict[str, Callable[[Any], Result]] = {
    name: getattr(elementwise, name)
    for name in [
        "negative",
        "exp",
        "log",
        "sqrt",
        "absolute",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "relu",
    ]
} | {
    "gelu": activations.gelu,
    "gelu_tanh": activations.gelu_tanh,
    "silu": activations.silu,
    "elu": lambda a: activations.elu(a, alpha=1.0),
    "leaky_relu": lambda a: activations.leaky_relu(a, slope=0.1),
    "softplus": lambda a: activations.softplus(a, beta=1.0, threshold=20.0),
    "clip": lambda a: elementwise.clip(a, low=1.2, high=1.8),
    "plus a number": lambda a: elementwise.add(a, 1.0),
    "to a power": lambda a: elementwise.power(a, 2.0),
}
OF_TWO = ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum"]


def channels_last(*seeds: int) -> list[np.ndarray]:
    """Arrays (N, C, H, W) whose channels lie side by side."""
    made = [np.random.default_rng(s).random((2, 4, 5, 3), np.float32) + 1 for s in seeds]
    return [a.transpose(0, 3, 1, 2) for a in made]


def agree(op: Callable[..., Result], g: np.ndarray, *arrays: np.ndarray) -> None:
    """Values and gradients of the device have strides and numbers of the host's."""
    made = []
    for given in ([g, *arrays], [moved(a) for a in (g, *arrays)]):
        result = op(*given[1:])
        shared = given[0] if result.prepare is None else result.prepare(given[0], [True] * 2)
        made.append([result.value, *(vjp(shared, None) for vjp in result.vjps)])
    for expected, found in zip(*made, strict=True):
        if expected.shape == g.shape:
            assert found.strides == expected.strides == g.strides
        np.testing.assert_allclose(found.get(), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("op", OF_ONE.values(), ids=OF_ONE)
def test_an_op_of_one_array(op: Callable[[Any], Result]) -> None:
    agree(op, *channels_last(0, 1))


@pytest.mark.parametrize("name", OF_TWO)
def test_an_op_of_two_arrays(name: str) -> None:
    g, a, b = channels_last(0, 1, 2)
    agree(getattr(elementwise, name), g, a, b)
    agree(getattr(elementwise, name), g, a, ROW)


def test_prelu() -> None:
    agree(activations.prelu, *channels_last(0, 1), ROW.reshape(3) - 1)


def test_a_choice() -> None:
    g, a, b = channels_last(0, 1, 2)

    def larger(a: Any, b: Any) -> Result:
        result = elementwise.where(logic.greater(a, b).value, a, b)
        return result._replace(vjps=result.vjps[1:])

    agree(larger, g, a, b)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_joined_images_keep_the_order_of_memory(axis: int) -> None:
    """As a model whose branches are joined needs them, for its next convolution."""
    host = channels_last(0, 1)
    joined = shape.concatenate(*map(moved, host), axis=axis)
    expected = np.concatenate(host, axis)
    assert joined.value.strides == expected.strides
    np.testing.assert_array_equal(joined.value.get(), expected)
    with pytest.raises(ValueError, match="do not fit along axis 4"):
        shape.concatenate(*map(moved, host), axis=4)
