"""Ops in 16 bits on a device, at large numbers too: the host's values and gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE

from nnmpi.autograd.ops import activations, attention, logic, lookup, shape, softmax
from nnmpi.dtypes import named
from nnmpi.kernels import Result

xp = DEVICE.xp
OPS: dict[str, Callable[[Any], Result]] = {
    "gelu": activations.gelu,
    "gelu_tanh": activations.gelu_tanh,
    "silu": activations.silu,
    "elu": lambda a: activations.elu(a, alpha=1.0),
    "softplus": lambda a: activations.softplus(a, beta=1.0, threshold=20.0),
    "softmax": softmax.softmax,
    "log_softmax": softmax.log_softmax,
}
HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
BOUND = {"float16": 2e-3, "bfloat16": 1.6e-2}


def some(dtype: str, *shape_: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape_).astype(named(dtype))


def moved(*arrays: np.ndarray) -> list[Any]:
    return [xp.asarray(a) for a in arrays]


def value_and_gradient(op: Callable[[Any], Result], x: Any, g: Any) -> tuple[Any, Any]:
    result = op(x)
    shared = g if result.prepare is None else result.prepare(g, [True])
    return result.value, result.vjps[0](shared, None)


def agrees(found: Any, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    here, there = (a.astype(np.float64) for a in (expected, found.get()))
    bound = BOUND[expected.dtype.name]
    np.testing.assert_allclose(there, here, rtol=bound, atol=bound * float(abs(here).max()))


@HALVES
@pytest.mark.parametrize("size", [1, 300, 6e4])
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_an_op_at_large_numbers(op: Callable[[Any], Result], size: float, dtype: str) -> None:
    x = (np.linspace(-1, 1, 24).reshape(4, 6) * size).astype(named(dtype))
    g = some(dtype, 4, 6)
    (value, d), (there, of_x) = (value_and_gradient(op, a, b) for a, b in ((x, g), moved(x, g)))
    agrees(there, value)
    agrees(of_x, d)


@HALVES
def test_attention_has_the_digits_of_the_host(dtype: str) -> None:
    qkv, g = 2 * some(dtype, 1, 96, 2, 3, 16), some(dtype, 1, 96, 2, 16)
    op = partial(attention.self_attention, scale=0.25, causal=True)
    pairs = zip(value_and_gradient(op, *moved(qkv, g)), value_and_gradient(op, qkv, g), strict=True)
    for found, expected in pairs:
        a, b = found.get().astype(float), expected.astype(float)
        assert np.linalg.norm(a - b) < BOUND[dtype] / 2 * np.linalg.norm(b)


@HALVES
def test_rows_are_added_in_float32(dtype: str) -> None:
    w, index = some(dtype, 5, 3), np.array([1, 4, 1, 1, -4, 0] * 50)
    g = some(dtype, len(index), 3)
    expected = np.zeros(w.shape)
    np.add.at(expected, index, g.astype(float))
    on = moved(w, index, g)
    for result in (lookup.embedding(on[0], index=on[1]), shape.getitem(on[0], index=on[1])):
        d = result.vjps[0](on[2], None)
        assert d.dtype == w.dtype
        agrees(d, expected.astype(w.dtype))


def test_places_in_bfloat16() -> None:
    x = some("bfloat16", 4, 9)
    for op in (logic.argmax, logic.argsort):
        found = op(xp.asarray(x), axis=1).value
        np.testing.assert_array_equal(found.get(), op(x, axis=1).value)


@pytest.mark.parametrize("name", ["argmax", "argsort", "logical_not"])
def test_the_stand_in_lacks_what_cupy_lacks(name: str) -> None:
    with pytest.raises(TypeError, match="no bfloat16"):
        getattr(xp, name)(xp.asarray(some("bfloat16", 2, 2)))
