"""Arguments of kernels in 16 bits, and of kernels of 16 bits."""

from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 - adds bfloat16 to NumPy
import numpy as np
from helpers.kernels.numbers import Rng, numbers, one_of

from nnmpi.arrays.dtypes import HALVES, is_half

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of one rounding."""


def narrowed(value: Any, dtype: str, rng: Rng, share: float) -> Any:
    """A share of the arrays of float32 in 16 bits, in the same order of memory."""
    if isinstance(value, list | tuple):
        return type(value)(narrowed(item, dtype, rng, share) for item in value)
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or rng.random() >= share:
        return value
    if not isinstance(value.base, np.ndarray | None):  # windows that overlap, by as_strided
        return value
    return _like(value, dtype)


def _like(a: np.ndarray, dtype: Any) -> np.ndarray:
    """A copy in another type, with the same steps between numbers."""
    strides = [step // a.itemsize for step in a.strides]
    room = np.zeros(
        1 + sum((n - 1) * step for n, step in zip(a.shape, strides, strict=True)), dtype
    )
    found = np.lib.stride_tricks.as_strided(room, a.shape, [s * room.itemsize for s in strides])
    found[...] = a
    return found


def widened(value: Any) -> Any:
    """Copies of all arrays, with those of 16 bits in float32."""
    if isinstance(value, list | tuple):
        return type(value)(map(widened, value))
    if not isinstance(value, np.ndarray):
        return value
    return _like(value, np.float32 if is_half(value.dtype) else value.dtype)


def found(value: Any) -> bool:
    """Whether an array has 16 bits."""
    if isinstance(value, list | tuple):
        return any(map(found, value))
    return isinstance(value, np.ndarray) and is_half(value.dtype)


def cast(rng: Rng, dtype: Any) -> list[Any]:
    n = int(rng.integers(1, 10_000))
    return [numbers(rng, n, dtype), np.zeros(n, dtype)]


def merge(rng: Rng, dtype: Any) -> list[Any]:
    """Some values are not the rounding of their masters."""
    n = int(rng.integers(1, 10_000))
    masters = rng.standard_normal(n).astype(dtype)
    values = masters.astype(one_of(rng, *HALVES))
    written = rng.random(n) < one_of(rng, 0, 0.01, 0.5)
    values[written] = rng.standard_normal(int(written.sum()))
    return [masters, values]


def two(rng: Rng, dtype: Any) -> list[Any]:
    n = int(rng.integers(1, 10_000))
    return [numbers(rng, n, dtype), numbers(rng, n, dtype), np.zeros(n, dtype)]


def rows(rng: Rng, dtype: Any) -> list[Any]:
    """The rows of an array and some that lie apart, which get their rounding."""
    n, m, D = map(int, rng.integers(1, 40, 3))
    y = np.zeros((m, n, 2, D), one_of(rng, *HALVES))[:, :, 1].transpose(1, 0, 2)
    return [numbers(rng, (n, m, D), dtype), y]


CASES: dict[str, tuple[Callable[[Rng, Any], list[Any]], float, bool]] = {
    "cast_loop": (cast, 0, False),
    "merge_loop": (merge, 0, False),
    "round_loop": (rows, 0, False),
    "add_loop": (two, 0, False),
    "subtract_loop": (two, 0, False),
    "multiply_loop": (two, 0, False),
}
