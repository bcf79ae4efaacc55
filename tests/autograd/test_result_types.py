"""The types of results: PyTorch's where integers meet floats, and for 0-d tensors."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi

DTYPES = ("bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")

TWO: dict[str, Callable[[Any, Any, Any], Any]] = {
    "+": lambda n, a, b: a + b,
    "*": lambda n, a, b: a * b,
    "/": lambda n, a, b: a / b,
    "maximum": lambda n, a, b: n.maximum(a, b),
    "where": lambda n, a, b: n.where(a > 1, a, b),
    "<": lambda n, a, b: a < b,
    "cat": lambda n, a, b: n.cat([a.reshape(-1), b.reshape(-1)]),
}
ONE: dict[str, Callable[[Any, Any], Any]] = {
    "halved": lambda n, t: t / 2,
    "times a float": lambda n, t: t * 0.5,
    "a float over it": lambda n, t: 1.5 / t,
    "times an integer": lambda n, t: t * 2,
    "functions": lambda n, t: n.exp(t),
    "roots": lambda n, t: t.sqrt(),
    "curves": lambda n, t: t.tanh() + t.sigmoid(),
    "above a float": lambda n, t: t > 0.5,
    "masked fill": lambda n, t: t.masked_fill(t > 1, 0.5),
    "clamped": lambda n, t: t.clamp(1),
    "sums": lambda n, t: t.sum(0),
    "running sums": lambda n, t: t.cumsum(0),
    "products": lambda n, t: t.prod(),
}


def same(ours: Any, theirs: Any) -> None:
    expected = theirs.numpy()
    assert ours.dtype == expected.dtype
    rtol = 2e-3 if expected.dtype == "float16" else 1e-6
    np.testing.assert_allclose(ours.numpy(), expected, rtol=rtol)


@needs_torch
@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("first", DTYPES)
def test_two_tensors(name: str, first: str) -> None:
    """Of all pairs of types, arrays and 0-d tensors: those that PyTorch takes."""
    torch = pytorch()
    for second in DTYPES:
        for shapes in (((3,), (3,)), ((), (3,)), ((3,), ()), ((), ())):
            a, b = (
                np.resize([1, 2, 3], shape).astype(dtype)
                for shape, dtype in zip(shapes, (first, second), strict=True)
            )
            call = TWO[name]
            theirs = call(torch, torch.tensor(a), torch.tensor(b))
            same(call(nnmpi, nnmpi.tensor(a), nnmpi.tensor(b)), theirs)


@needs_torch
@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_and_a_number(name: str, dtype: str) -> None:
    torch = pytorch()
    a = np.array([1, 2, 3]).astype(dtype)
    try:
        theirs = ONE[name](torch, torch.tensor(a))
    except (RuntimeError, NotImplementedError):
        return
    same(ONE[name](nnmpi, nnmpi.tensor(a)), theirs)


@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.truediv])
def test_integers_and_float32_are_float32_and_their_gradients_too(op: Any) -> None:
    labels, x = nnmpi.tensor([1, 2, 3]), nnmpi.tensor([1.0, 2.0, 4.0], requires_grad=True)
    y = op(labels, x)
    assert y.dtype == "float32"
    y.sum().backward()
    assert x.grad.dtype == "float32"
    assert (labels == x.detach()).numpy().tolist() == [True, True, False]
    assert (labels / 2).numpy().tolist() == [0.5, 1.0, 1.5]
