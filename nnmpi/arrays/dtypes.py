"""Types of numbers: the policy of which type is used for what, and names of types.

    types_of(parameters)    the types of all else in a model with parameters of this type

float16 and bfloat16 have 16 bits; NumPy has bfloat16 from the package ml_dtypes only. Its functions
for both are slow, and add up without float32's digits: a kernel gets copies in float32 of what
NumPy has in 16 bits, and what it writes is rounded once (`native/table.py`).
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

HALVES = ("float16", "bfloat16")
"""The types of 16 bits, by name."""


class Types(NamedTuple):
    """The types in a model whose parameters, activations and gradients have one type.

    parameters  of activations and gradients, too, as they are in memory and in messages
    sums        of reductions, products, statistics and losses, before they are rounded
    masters     of the values that an optimizer updates, and of its state: parameters of
                another type are their rounding
    """

    parameters: Any
    sums: Any
    masters: Any

    @property
    def is_mixed(self) -> bool:
        """Whether masters and sums have another type than parameters."""
        return is_half(self.parameters)


@lru_cache(maxsize=64)
def types_of(parameters: Any) -> Types:
    """The policy: sums and masters have at least float32."""
    at_least_float32 = np.promote_types(parameters, np.float32)
    return Types(np.dtype(parameters), at_least_float32, at_least_float32)


@lru_cache(maxsize=64)
def is_half(dtype: Any) -> bool:
    """Whether numbers of this type have 16 bits."""
    return dtype.name in HALVES


@lru_cache(maxsize=64)
def is_float(dtype: Any) -> bool:
    """Whether numbers of this type are floats."""
    return dtype.kind == "f" or dtype.name in HALVES


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
