"""Conversion of what users pass as arrays and as shapes."""

from typing import Any, NoReturn

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array


def array_on(on: backend.Backend, value: Any, dtype: Any = None) -> Array:
    """An array of any backend, a number or nested lists of numbers, as an array on this one."""
    array = value if backend.is_array(value) else np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"a tensor holds real numbers, not {type(value).__name__}")
    return on.asarray(array, dtype)


def flat(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """(2, 3) from either f(2, 3) or f((2, 3))."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes


def refuse_constants(value: Any) -> NoReturn:
    """Refuse an op none of whose arguments is a tensor."""
    raise TypeError(
        f"an op needs at least one tensor, got only constants such as this "
        f"{type(value).__name__}: make one with nnmpi.tensor(x)"
    )
