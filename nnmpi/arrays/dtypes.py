"""The policy of dtypes: which dtype is used for which values; and dtypes by name.

    types_of(parameters)    the dtypes of everything else in a model with parameters of this dtype

float16 and bfloat16 have 16 bits; NumPy has bfloat16 only with the package ml_dtypes. NumPy's
functions are slow for both, and do not add up in float32. So a kernel gets float32 copies of
NumPy's 16-bit arrays, and its results are rounded once (`native/table.py`).
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

HALVES = ("float16", "bfloat16")
"""The names of the 16-bit floating-point dtypes."""


_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
}
_OTHERS = ("bool", "short", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
TYPES = {
    name: np.dtype(_ALIASES.get(name, name)) for name in (*_ALIASES, *_ALIASES.values(), *_OTHERS)
}
"""NumPy's dtypes by PyTorch's names, but for bfloat16: `t.dtype is nnmpi.long`."""


class Types(NamedTuple):
    """The dtypes in a model whose parameters, activations and gradients have one dtype.

    parameters  of these three, in memory and in messages
    sums        of reductions, products, statistics and losses, before they are rounded
    masters     of the values that an optimizer updates, and of its state; parameters of another
                dtype are masters rounded to it
    """

    parameters: Any
    sums: Any
    masters: Any

    @property
    def is_mixed(self) -> bool:
        """True if parameters have 16 bits, so that masters and sums have another dtype."""
        return is_half(self.parameters)


@lru_cache(maxsize=64)
def types_of(parameters: Any) -> Types:
    """Returns the dtypes of a model of this dtype; sums are at least float32."""
    at_least_float32 = np.promote_types(parameters, np.float32)
    return Types(np.dtype(parameters), at_least_float32, at_least_float32)


@lru_cache(maxsize=64)
def is_half(dtype: Any) -> bool:
    """True if this dtype is a 16-bit float."""
    return dtype.name in HALVES


@lru_cache(maxsize=64)
def is_float(dtype: Any) -> bool:
    """True if this dtype is a floating-point dtype, bfloat16 included."""
    return dtype.kind == "f" or dtype.name in HALVES


@lru_cache(maxsize=64)
def category(dtype: Any) -> int:
    """Returns 0 for booleans, 1 for integers, 2 for floats; ops take the higher one."""
    return 2 if is_float(dtype) else int(dtype.kind in "iu")


@lru_cache(maxsize=256)
def common_type(x: Any, y: Any) -> Any:
    """Returns the dtype of an op's result by PyTorch's rules: a float beside an integer stays,
    float16 and bfloat16 give float32."""
    if is_half(x) and is_half(y):
        return x if x == y else np.dtype(np.float32)
    of_x, of_y = category(x), category(y)
    return np.promote_types(x, y) if of_x == of_y else x if of_x > of_y else y


def fitting(value: Any, dtype: Any) -> Any:
    """Returns the value as written to an array of this dtype (None: none): as in PyTorch, negative
    numbers wrap in unsigned types, others must fit."""
    if value.__class__ is not int or dtype is None or dtype.kind not in "iu":
        return value
    info = np.iinfo(dtype)
    if -info.max <= value < info.min == 0:
        return value + info.max + 1
    if not info.min <= value <= info.max:
        raise ValueError(
            f"{value} does not fit into {dtype}, which holds {info.min} to {info.max}: convert the "
            "tensor first, as in t.to(nnmpi.int64)"
        )
    return value


def float_type(x: Any) -> Any:
    """Returns the dtype of x if it is a float, otherwise float32."""
    return np.dtype(np.float32) if x.dtype.kind in "biu" else x.dtype


def in_16_bits(array: Any) -> bool:
    """True if `array` is an array of any backend with a 16-bit floating-point dtype."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and is_half(dtype)


def on_host_in_16_bits(array: Any) -> bool:
    """True if `array` is a NumPy array with a 16-bit floating-point dtype."""
    return isinstance(array, np.ndarray) and is_half(array.dtype)


def named(name: str) -> Any:
    """Returns the dtype of this name; raises ValueError if ml_dtypes is missing for it."""
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401 - adds the type to NumPy
        except ImportError:
            raise ValueError(
                "dtype bfloat16 needs the package ml_dtypes, which is not installed: "
                "pip install 'nnmpi[bfloat16]', or use float16"
            ) from None
    return np.dtype(name)


def of_pytorch(name: str) -> Any:
    """Returns the dtype of this name in PyTorch, or None; loads ml_dtypes for bfloat16."""
    return named(name) if name == "bfloat16" else TYPES.get(name)


def on_paper(name: str) -> np.dtype[Any]:
    """Returns the dtype of this name, or one of its size: bfloat16 needs ml_dtypes."""
    return np.dtype("float16") if name == "bfloat16" and not has_bfloat16() else np.dtype(name)


def has_bfloat16() -> bool:
    """True if ml_dtypes is installed, so that NumPy has bfloat16."""
    try:
        named("bfloat16")
    except ValueError:
        return False
    return True
