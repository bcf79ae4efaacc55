"""Normalises arguments that have two forms or two names: sizes, axes, options."""

from math import prod
from typing import Any

from nnmpi.arrays.backend import Backend, get, is_device
from nnmpi.arrays.dtypes import named


class ElementCount(int):
    """The number of elements of a tensor: an int, as NumPy's t.size, that can also be called like
    PyTorch's t.size(), which returns the shape, or t.size(0), the length of an axis."""

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
        return int, (int(self),)  # copied, or pickled for another rank, it becomes a plain int


def flat(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes as a tuple, (2, 3), whether they were given as f(2, 3) or as f((2, 3))."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


def sizes_of(sizes: tuple[Any, ...], size: Any) -> tuple[int, ...]:
    """The sizes as a tuple, given as f(2, 3), f((2, 3)) or f(size=(2, 3))."""
    return flat(sizes if size is None else (size,))


def one_of(name: str, value: Any, other: str, alias: Any) -> Any:
    """Returns `value`, or `alias`, which has another name; raises TypeError if both are given."""
    if value is not None and alias is not None:
        raise TypeError(
            f"{name}={value} and {other}={alias}: two names of one argument; give one of them"
        )
    return value if alias is None else alias


def axis_of(axis: Any, dim: Any, default: int | None = None) -> Any:
    """The axis or axes given as `axis` or as `dim`, or the default; a list becomes a tuple."""
    given = one_of("axis", axis, "dim", dim)
    return default if given is None else tuple(given) if isinstance(given, list) else given


def reduced_axes(axis: Any, dim: Any) -> Any:
    """The axes of a reduction. None means all; axis=() reduces none, and dim=() all of them."""
    return axis_of(axis, None if isinstance(dim, (tuple, list)) and not dim else dim)


def keeps_axes(keepdims: bool | None, keepdim: bool | None) -> bool:
    """True if reduced axes are kept with length 1, given NumPy's or PyTorch's argument."""
    return bool(one_of("keepdims", keepdims, "keepdim", keepdim))


def type_and_device(args: tuple[Any, ...], dtype: Any, device: Any) -> tuple[Any, Any]:
    """Returns (dtype, backend) from the arguments of `Tensor.to`; None for each that is missing."""
    for value in args:
        if isinstance(value, Backend) or is_device(value):
            device = value
        elif value is not None:
            dtype = value
    # NumPy knows the name bfloat16 only once `named` has loaded the type
    return named(dtype) if dtype == "bfloat16" else dtype, None if device is None else get(device)
