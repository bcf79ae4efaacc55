"""Every op in 16 bits on a device, at 1, 300 and 60,000: the host's values and gradients."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.ops.opcases_all import CASES, each, is_leaf

from nnmpi.arrays.backend import CPU, Backend, to_host
from nnmpi.arrays.dtypes import HALVES, is_half, named
from nnmpi.autograd import Tensor

pytestmark = needs_device
BOUND = {"float16": 4e-3, "bfloat16": 3.2e-2}
"""Four roundings of 16 bits, relative to the largest number."""

SIZES = 1.0, 300.0, 6e4

ADDED_UP = "conv", "matmul", "attention", "self-attention", "group_norm", "rnn", "gru", "lstm"
"""Ops of which the host loses more than that where sums cancel: a device may lose so much too."""

BIASED = "rnn", "gru", "lstm"
"""A device rounds their products before it adds biases: beyond 65,504 it may have infinity where
the host, which rounds once, has a number."""

CASES_AT = [
    pytest.param(name, size, dtype, marks=() if i % 191 == 0 else pytest.mark.long)
    for i, (name, size, dtype) in enumerate(product(CASES, SIZES, HALVES))
    if size == 1 or dtype == "bfloat16" or not name.startswith(BIASED)
]
"""Without --all ops, sizes and types vary: 191 and their 6 have no common divisor."""


def scaled(a: np.ndarray, size: float, dtype: str) -> np.ndarray:
    """Numbers of which the largest is `size`, and which the type has."""
    largest = float(abs(a).max(initial=0)) or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        return (a * (size / largest)).astype(named(dtype)) if size > 1 else a.astype(named(dtype))


def evaluated(
    name: str, on: Backend, size: float, dtype: str, computed: str = ""
) -> list[np.ndarray]:
    """The value of a case and the gradients of its leaves, of numbers that a type has; they are
    computed in another type, if one is named."""
    case = CASES[name]

    def moved(a: np.ndarray) -> Any:
        if not is_leaf(a):
            return on.asarray(a)
        return on.asarray(scaled(a, size, dtype).astype(named(computed or dtype), copy=False))

    given = case.arrays(name)
    args = [
        Tensor(moved(a), requires_grad=case.has_gradient) if is_leaf(a) else each(moved, a)
        for a in given
    ]
    if not case.has_gradient and not isinstance(args[0], Tensor):
        args[0] = Tensor(args[0])
    with np.errstate(all="ignore"):
        y = case.run(case.op, *args, **each(moved, dict(case.options)))
        leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        if leaves:
            g = np.random.default_rng(1).standard_normal(y.shape)
            y.backward(on.asarray(g.astype(y.dtype)))
    return [y.numpy(), *(to_host(leaf.grad_array) for leaf in leaves if leaf.grad is not None)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "size", "dtype"), CASES_AT)
def test_a_device_computes_what_the_host_does(name: str, size: float, dtype: str) -> None:
    try:
        here = evaluated(name, CPU, size, dtype)
    except (ValueError, TypeError) as refused:
        with pytest.raises(type(refused)):
            evaluated(name, DEVICE, size, dtype)
        return
    there = evaluated(name, DEVICE, size, dtype)
    exact = evaluated(name, CPU, size, dtype, "float64") if name.startswith(ADDED_UP) else here
    for a, b, c in zip(there, here, exact, strict=True):
        assert a.dtype == b.dtype
        if not is_half(b.dtype):
            np.testing.assert_allclose(a, b, rtol=1e-3)
            continue
        a, b = a.astype("f8"), b.astype("f8")
        with np.errstate(invalid="ignore"):
            lost = np.max(abs(b - c), where=np.isfinite(b - c), initial=0)  # 0 of other ops
        largest = np.max(abs(b), where=np.isfinite(b), initial=0)
        bound = BOUND[dtype]
        np.testing.assert_allclose(a, b, rtol=bound, atol=bound * largest + 3 * lost)
