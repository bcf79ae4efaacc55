"""Conversion of what users pass as arrays and as shapes."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.dtypes import is_float


class ElementCount(int):
    """The number of elements, NumPy's t.size; called as PyTorch's t.size() it is the shape, and as
    t.size(0) the length of an axis."""

    def __new__(cls, shape: tuple[int, ...]) -> "ElementCount":
        size = super().__new__(cls, prod(shape))
        size._shape = shape
        return size

    _shape: tuple[int, ...]

    def __call__(self, dim: int | None = None) -> Any:
        if dim is None:
            return self._shape
        if not -len(self._shape) <= dim < len(self._shape):
            raise IndexError(f"size: axis {dim} is out of range for shape {self._shape}")
        return self._shape[dim]

    def __reduce__(self) -> Any:
        return int, (int(self),)  # a copy, or one that another rank gets, is a number


def array_on(on: backend.Backend, value: Any, dtype: Any = None) -> Array:
    """An array of any backend, a number or nested lists of numbers, as an array on this one."""
    array = value if backend.is_array(value) else np.asarray(value)
    if array.dtype.kind not in "biuf" and not is_float(array.dtype):
        raise TypeError(f"a tensor holds real numbers, not {type(value).__name__}")
    return on.asarray(array, dtype)


def flat(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """(2, 3) from either f(2, 3) or f((2, 3))."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes


def constant(value: Any, others: Sequence[Any], tensor: Any) -> Any:
    """An argument without a gradient as an op takes it, on the backend of the tensors in `others`.

    Numbers, NumPy's included, become Python numbers, which do not promote the type of arrays.
    `tensor` is the class of tensors.
    """
    if isinstance(value, np.generic):  # before float, which np.float64 is too
        return value.item()
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, tensor):
        return value.data
    for t in others:
        if isinstance(t, tensor):
            like = t.operand
            return value if type(value) is type(like) else array_on(backend.of(like), value)
    raise TypeError(
        f"an op needs at least one tensor, got only constants such as this "
        f"{type(value).__name__}: make one with nnmpi.tensor(x)"
    )


def index_of(index: Any, tensor: Any) -> Any:
    """An index with an array in place of each tensor."""
    if isinstance(index, tuple):
        return tuple(index_of(k, tensor) for k in index)
    return index.data if isinstance(index, tensor) else index


def one_of(name: str, value: Any, other: str, alias: Any) -> Any:
    """The value of an argument that has two names, NumPy's and PyTorch's; None if not given."""
    if value is not None and alias is not None:
        raise TypeError(
            f"{name}={value} and {other}={alias}: these are two names of one argument; give one"
        )
    return value if alias is None else alias


def axis_of(axis: Any, dim: Any) -> Any:
    """The axis or axes given, by either name; a list becomes a tuple."""
    given = one_of("axis", axis, "dim", dim)
    return tuple(given) if isinstance(given, list) else given


def keeps_axes(keepdims: bool | None, keepdim: bool | None) -> bool:
    """Whether reduced axes stay with length 1, by either name."""
    return bool(one_of("keepdims", keepdims, "keepdim", keepdim))
