"""What may be an operand, and how it is unwrapped for NumPy."""

from typing import Any

import numpy as np


def words(text: str) -> list[str]:
    """The names in a text: long lists of them read better so."""
    return text.split()


ELEMENTS = frozenset(
    words(
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
        "float16 float32 float64 complex64 complex128 bfloat16"
    )
)
_PYTHON_SCALARS = (bool, int, float, complex)


class Held:
    """A NumPy array `_a` out of NumPy's reach; `ndarray` gives it its face."""

    __slots__ = ("__weakref__", "_a")

    def __init__(self, array: np.ndarray) -> None:
        if array.dtype.name not in ELEMENTS:
            raise TypeError(f"Unsupported dtype {array.dtype}")
        self._a = array


def is_scalar(value: object) -> bool:
    """Whether CuPy passes `value` to a kernel by value (a subclass of int, say, it does not)."""
    if isinstance(value, np.generic):
        return value.dtype.name in ELEMENTS
    return type(value) in _PYTHON_SCALARS


def operand(value: Any) -> Any:
    """What NumPy is given for an array or a scalar; everything else raises."""
    if isinstance(value, Held):
        return value._a
    if is_scalar(value):
        return value
    raise refusal(value)


def raw(value: Any) -> Any:
    """`value` with every array in it unwrapped; a NumPy array anywhere in it raises."""
    if isinstance(value, Held):
        return value._a
    if isinstance(value, np.ndarray):
        raise refusal(value)
    if type(value) in (list, tuple):
        return type(value)(raw(entry) for entry in value)
    return value


def refusal(value: object) -> TypeError:
    """The error with which CuPy meets a NumPy array, a list, None, ... in place of an array."""
    return TypeError(f"Unsupported type {type(value)}")
