"""Types of numbers: which are floats, which have 16 bits, and in which type these are summed.

float16 and bfloat16 have 16 bits; NumPy has bfloat16 from the package ml_dtypes only. Its functions
for both are slow, and add up without float32's digits.
"""

from functools import lru_cache
from typing import Any

import numpy as np

HALVES = ("float16", "bfloat16")
"""The types of 16 bits, by name."""


@lru_cache(maxsize=64)
def is_half(dtype: Any) -> bool:
    """Whether numbers of this type have 16 bits."""
    return dtype.name in HALVES


@lru_cache(maxsize=64)
def is_float(dtype: Any) -> bool:
    """Whether numbers of this type are floats."""
    return dtype.kind == "f" or dtype.name in HALVES


@lru_cache(maxsize=64)
def wide(dtype: Any) -> Any:
    """The type in which such floats are added up: at least float32."""
    return np.promote_types(dtype, np.float32)


def in_16_bits(array: Any) -> bool:
    """Whether this is an array in 16 bits."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and is_half(dtype)


def on_host_in_16_bits(array: Any) -> bool:
    """Whether NumPy has this array, in 16 bits."""
    return isinstance(array, np.ndarray) and is_half(array.dtype)


def named(name: str) -> Any:
    """The type of this name; raises ValueError for bfloat16 without ml_dtypes."""
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401 - adds the type to NumPy
        except ImportError:
            raise ValueError(
                "dtype bfloat16 needs the package ml_dtypes, which is not installed: "
                "pip install 'nnmpi[bfloat16]', or use float16"
            ) from None
    return np.dtype(name)


def has_bfloat16() -> bool:
    """Whether ml_dtypes is installed."""
    try:
        named("bfloat16")
    except ValueError:
        return False
    return True
