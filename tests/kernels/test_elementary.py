"""The errors of compiled functions, in units of the last place, over the range of float32."""

import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from nnmpi.arrays import native
from nnmpi.arrays.kernels.activations import erfc

MODULES = dict(native.modules())
SAMPLE = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
"""Of all bits of float32 every 4,099th: NaN, infinite and denormal numbers are among them."""

Function = Callable[[np.ndarray], np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def phi(x: np.ndarray) -> np.ndarray:
    return 0.5 * erfc(x * -math.sqrt(0.5))


def wide(x: np.ndarray) -> np.ndarray:
    return math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)


FUNCTIONS: dict[str, tuple[Function, float, float]] = {
    "tanh_loop": (np.tanh, 2.6, -np.inf),
    "sigmoid_loop": (sigmoid, 2.5, -np.inf),
    "silu_loop": (lambda x: x * sigmoid(x), 3.3, -87),  # below it sigmoid(x) is denormal
    "gelu_loop": (lambda x: x * phi(x), 7, -13),  # the same of phi(x)
    "gelu_tanh_loop": (lambda x: x * sigmoid(wide(x)), 3.5, -1),  # e**x multiplies errors of x
}
"""The function in float64, the largest error of the compiled one in ulp, and from which x on."""


def values(module: ModuleType, name: str) -> np.ndarray:
    count = 2 if name in ("tanh_loop", "sigmoid_loop") else 3
    outputs = [np.empty_like(SAMPLE) for _ in range(count - 1)]
    assert getattr(module, name)(SAMPLE, *outputs) is None
    return outputs[-1]


@pytest.mark.skipif(not MODULES, reason="the kernels were not compiled")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_is_at_most_as_stated(name: str) -> None:
    function, most, low = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        right = function(SAMPLE.astype(np.float64))
        nearest = right.astype(np.float32)
        ulp = np.spacing(np.maximum(abs(nearest), np.float32(1e-45))).astype(np.float64)
    found = values(next(iter(MODULES.values())), name)
    assert np.array_equal(np.isnan(found), np.isnan(right))
    infinite = np.isinf(nearest)
    assert np.array_equal(found[infinite], nearest[infinite])
    stated, rest = (np.isfinite(nearest) & where for where in (low <= SAMPLE, low > SAMPLE))
    assert (abs(found[stated] - right[stated]) / ulp[stated]).max() < most
    assert abs(found[rest] - right[rest]).max(initial=0) < 1e-7
    assert np.array_equal(np.signbit(found[SAMPLE == 0]), np.signbit(nearest[SAMPLE == 0]))


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sets_of_instructions_agree_to_the_bit(name: str, module: ModuleType) -> None:
    one, other = values(module, name), values(MODULES["baseline"], name)
    assert np.array_equal(one.view(np.uint32)[one == one], other.view(np.uint32)[one == one])
