"""Scalars of NumPy in a compiled step: beside tensors they count as Python numbers, as in the step
as written; and numbers that are NaN."""

import math
from typing import Any

import numpy as np
import pytest
from helpers.training.steps import results

import nnmpi
from nnmpi import Tensor, nn

EXACT = np.array([0.5, 0.25, 0.5])
"""Numbers with which products have the same bits in float32 and in float64."""


def found(expression: str, dtype: str, is_compiled: bool) -> tuple[list[Any], int]:
    """The gradients of steps for several arrays of float64, the first of which is EXACT, and how
    many steps were replayed."""
    w = nn.Parameter(np.linspace(-1, 1, 6).astype(dtype))
    names = {"w": w, "np": np, "nnmpi": nnmpi, "Tensor": Tensor}
    text = f"def step(a):\n w.grad = None\n y = {expression}\n (y * y).sum().backward()\n"
    exec(f"{text} return y, w.grad.clone()", names)
    step: Any = nnmpi.compile(names["step"]) if is_compiled else names["step"]
    rng = np.random.default_rng(1)
    arrays = [EXACT, EXACT, *rng.uniform(0.1, 9, (8, 3))]
    return [results(step(a)) for a in arrays], getattr(step, "replays", 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "expression",
    [
        *("w * a.sum()", "w / a.max()", "w + a[0]", "w * a.dot(a)", "w * a.argmax()"),
        *("w * np.sqrt(a.max())", "w * (a.sum() + 1)", "w * np.einsum('i->', a)"),
        *("w * a.astype('int64').sum()", "w * a.sum().astype('float32')", "w * a.take(1)"),
        *("nnmpi.where(w > 0, w, a.sum())", "nnmpi.where(w > a.min(), a.max(), w)"),
        *("nnmpi.where(Tensor(a[:1]) > 0, w, a.sum())", "w.clamp(max=a.min())"),
        *("w * Tensor(a).sum().numpy()", "w * np.where(a.sum() > 0, a[0], a[1])"),
    ],
)
def test_a_scalar_of_numpy_promotes_no_gradient(expression: str, dtype: str) -> None:
    wanted, replays = (found(expression, dtype, on) for on in (False, True))
    assert replays[0] == wanted[0]
    assert replays[1] >= 8


def test_scalars_of_numpy_beside_16_bits_are_refused() -> None:
    """There a Python number is not rounded to 16 bits."""
    with pytest.raises(ValueError, match="an op of a scalar of NumPy and a tensor of type float16"):
        found("w * a.sum()", "float16", True)


def test_a_scalar_of_numpy_before_a_tensor_is_refused() -> None:
    step: Any = nnmpi.compile(lambda x, a: a[0] * x)
    with pytest.raises(ValueError, match=r"^nnmpi\.compile: .*reading an array needs values"):
        step(Tensor(np.ones(6, "float32")), EXACT)


def test_a_number_that_is_nan_is_equal_in_two_recordings() -> None:
    step: Any = nnmpi.compile(lambda x, n: (x * n, x + np.full(1, n)))
    for _ in range(3):
        assert all(np.isnan(y).all() for y in step(np.ones(1, "float32"), math.nan))
    assert step.replays == 2
