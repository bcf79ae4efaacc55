"""A Python number beside a tensor takes the tensor's type, of 16 bits too, or is refused."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.kernels.halves import UNIT
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi.arrays.dtypes import HALVES

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "x + 0.1": lambda x: x + 0.1,
    "1 + x": lambda x: 1 + x,
    "x - 0.1": lambda x: x - 0.1,
    "0.1 - x": lambda x: 0.1 - x,
    "x * 0.1": lambda x: x * 0.1,
    "0.1 * x": lambda x: 0.1 * x,
    "x / 3.0": lambda x: x / 3.0,
    "3 / x": lambda x: 3 / x,
    "x ** 2": lambda x: x**2,
    "x ** 0.5": lambda x: x**0.5,
    "2.0 ** x": lambda x: 2.0**x,
    "x * float64": lambda x: x * np.float64(0.1),
    "maximum": lambda x: nnmpi.maximum(x, 0.9),
    "minimum": lambda x: nnmpi.minimum(0.9, x),
    "where": lambda x: nnmpi.where(x.numpy() > 1, x, 0.3),
    "clip": lambda x: nnmpi.clip(x, 0.6, 1.7),
    "leaky_relu": lambda x: nnmpi.nn.functional.leaky_relu(x - 1, 0.25),
    "elu": lambda x: nnmpi.nn.functional.elu(x - 1, 0.5),
    "softplus": lambda x: nnmpi.nn.functional.softplus(x, 2.0),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_python_number_does_not_widen(name: str, dtype: str) -> None:
    """The value and the gradient are those of float32, rounded."""
    numbers = np.random.default_rng(0).integers(9, 32, (4, 5)).astype(dtype) / 16
    found = []
    for kind in (dtype, "float32"):
        x = nnmpi.tensor(numbers.astype(kind), requires_grad=True)
        y = FUNCTIONS[name](x)
        assert y.dtype == np.dtype(kind)
        y.backward(np.ones(y.shape, kind))
        found.append([y.numpy(), x.grad])
    for ours, theirs in zip(*found, strict=True):
        assert (abs(ours.astype("float32") - theirs) <= UNIT[dtype] * abs(theirs)).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", [operator.iadd, operator.isub, operator.imul, operator.itruediv])
def test_in_place_too(op: Callable[[Any, Any], Any], dtype: str) -> None:
    x = nnmpi.tensor(np.full(3, 1.5, dtype))
    y = op(x, 0.1)
    assert y is x
    assert y.dtype == np.dtype(dtype)


WITH_INTEGERS = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv),
    *(operator.mod, operator.pow, operator.and_, operator.or_, operator.xor),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
)
DO_NOT_FIT = r"does not fit into \w+, .*: convert the tensor first|is no integer: write t.float\(\)"


@needs_torch
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("op", WITH_INTEGERS, ids=lambda op: op.__name__)
def test_a_number_that_an_integer_type_does_not_hold(op: Any, dtype: str) -> None:
    """The result is PyTorch's, or the number is refused."""
    torch, a = pytorch(), np.array([1, 3, 100]).astype(dtype)
    for number in (-1, -128, -129, -300, 127, 128, 255, 256, 257, 300, 40_000):
        for given in (lambda t, n: (t, n)), (lambda t, n: (n, t)):
            operands = given(nnmpi.tensor(a), number)
            holds = -np.iinfo(dtype).max - 1 <= number <= np.iinfo(dtype).max
            if not holds or (number < 0 and op is operator.pow and operands[1] is number):
                with pytest.raises(ValueError, match=DO_NOT_FIT):
                    op(*operands)
                continue
            ours, theirs = op(*operands), op(*given(torch.tensor(a), number)).numpy()
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)


@pytest.mark.parametrize("op", [operator.pow, operator.mod, operator.floordiv])
def test_two_booleans_are_no_numbers(op: Any) -> None:
    b = nnmpi.tensor([True, False])
    for operands in ((b, True), (True, b), (b, b)):
        with pytest.raises(TypeError, match=r"takes no two booleans: .* t.long\(\)"):
            op(*operands)
    assert op(b, 2).dtype == "int64"
