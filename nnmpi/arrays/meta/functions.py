"""NumPy's functions for arrays without data, and the module `xp` that code gets for such arrays."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from numpy.lib import stride_tricks

from nnmpi.arrays.meta import shapes
from nnmpi.arrays.meta.array import RULES, MetaArray, logged, new_array, new_like, result_like
from nnmpi.arrays.meta.log import assign, log_call
from nnmpi.arrays.meta.shapes import axis_order, owner, refuse, small

F = TypeVar("F", bound=Callable[..., Any])


def like(array: np.ndarray) -> MetaArray:
    """Makes an array without data with the shape, dtype and memory layout of `array`."""
    return new_array(array.shape, array.dtype, axis_order(array))


def copy_of(array: np.ndarray) -> MetaArray:
    """Makes an array like `array`, and logs the copy of its values."""
    new = like(array)
    log_call(assign, new, array)
    return new


def is_meta(*values: Any) -> bool:
    """True if any of the values is an array without data, or a tuple or list that contains one."""
    for value in values:  # a loop: each write to a tensor asks
        if isinstance(value, MetaArray) or (isinstance(value, (tuple, list)) and is_meta(*value)):
            return True
    return False


def as_constant(value: MetaArray, operands: Sequence[Any]) -> Any:
    """Returns an array without data as the constant of an op on these operands. If it stands for a
    scalar, which becomes a Python number, it is converted as NumPy converts that."""
    if not value.is_scalar:
        return value
    arrays = [x for x in operands if hasattr(x, "dtype") and not getattr(x, "is_scalar", False)]
    floats = {x.dtype for x in arrays if x.dtype.kind not in "biu"}
    if value.dtype.kind == "f" and not floats:
        floats = {np.dtype(np.float32)}
    dtypes = floats or {x.dtype for x in arrays if x.dtype.kind != "b"} or {value.dtype}
    dtype = next(iter(dtypes))
    if len(dtypes) > 1 or (floats and dtype.itemsize == 2):
        types = " or ".join(sorted(map(str, dtypes)))
        refuse(f"an op of a scalar of NumPy and a tensor of type {types}")
    if floats and value.dtype != dtype:
        value = value.astype(np.float64, copy=False)  # as a Python number, also a large integer
    return value.astype(dtype, copy=False)


# ---- rules


def _register(*functions: Any) -> Callable[[F], F]:
    """Makes a decorator: called for NumPy's `functions` on arrays without data."""

    def register(rule: F) -> F:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


@_register(np.dot)
def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if out is None:
        out = result_like(shapes.dot(a, b), np.dot(small(a), small(b)))
    log_call(np.dot, a, b, out)
    return out


@_register(np.where)
def _where(*arguments: Any) -> Any:
    if len(arguments) == 1:
        refuse("numpy.where of one argument")
    new = new_like(shapes.broadcast(np.where, arguments), np.where(*map(small, arguments)))
    return logged(new, np.where, *arguments)


@_register(np.concatenate)
def _concatenate(arrays: Sequence[Any], axis: int | None = 0, out: Any = None, **how: Any) -> Any:
    parts = [np.reshape(a, -1) if axis is None else np.asanyarray(a) for a in arrays]
    k = (axis or 0) % parts[0].ndim
    if out is None:
        example = np.concatenate([*map(small, parts)], k, **how)
        out = new_like(shapes.concatenated(parts, k), example)
    log_call(np.concatenate, parts, k, out, casting="unsafe")
    return out


@_register(np.empty_like)
def _empty_like(
    a: Any, dtype: Any = None, order: Any = "K", subok: bool = True, shape: Any = None
) -> Any:
    if shape is not None:
        return xp.empty(shape, dtype or a.dtype)
    return new_like(a.shape, np.empty_like(small(a), dtype, order))


@_register(np.full_like)
def _full_like(a: Any, value: Any, *args: Any, **options: Any) -> Any:
    new = _empty_like(a, *args, **options)
    new.fill(value)
    return new


@_register(np.zeros_like)
def _zeros_like(a: Any, *args: Any, **options: Any) -> Any:
    return _full_like(a, 0, *args, **options)


@_register(np.ones_like)
def _ones_like(a: Any, *args: Any, **options: Any) -> Any:
    return _full_like(a, 1, *args, **options)


@_register(np.einsum)
def _einsum(equation: str, *operands: Any, optimize: Any = False, **options: Any) -> Any:
    """np.einsum of arrays without data; a view where NumPy has one."""
    terms, arrow, output = equation.partition("->")
    if not arrow or "." in equation:
        refuse(f"numpy.einsum of {equation}")
    few, sizes = [*map(small, operands)], [*map(shapes.stand_in, map(shapes.shape_of, operands))]
    path = np.einsum_path(equation, *sizes, optimize=optimize)[0] if optimize else False
    result = np.einsum(equation, *few, optimize=path, **options)
    if owner(result) is owner(few[0]):
        return np.einsum(equation, operands[0].view(np.ndarray), **options).view(MetaArray)
    lengths: dict[str, int] = {}
    for letters, size in zip(terms.split(","), sizes, strict=True):
        lengths |= {
            c: n for c, n in zip(letters, size.shape, strict=True) if lengths.get(c, 1) == 1
        }
    new = result_like([lengths[c] for c in output], result)
    return logged(new, np.einsum, equation, *operands, optimize=path, **options)


@_register(np.packbits)
def _packbits(a: Any) -> Any:
    return logged(new_array([-(-a.size // 8)], np.uint8), np.packbits, a)


@_register(np.unpackbits)
def _unpackbits(a: Any) -> Any:
    return logged(new_array([8 * a.size], np.uint8), np.unpackbits, a)


@_register(np.broadcast_to)
def _broadcast_to(a: Any, shape: Any, subok: bool = True) -> Any:
    options = {"subok": True}
    return np.ndarray.__array_function__(a, np.broadcast_to, (MetaArray,), (a, shape), options)


@_register(np.copy)
def _copy(a: Any, order: Any = "K", subok: bool = False) -> Any:
    return a.copy(order)


_OF_SHAPES: dict[Any, Callable[..., Any]] = {
    **{f: partial(log_call, f) for f in (np.copyto, np.put_along_axis)},
    **dict.fromkeys((np.may_share_memory, np.shares_memory), lambda a, b: owner(a) is owner(b)),
    np.result_type: lambda *args: np.result_type(*map(small, args)),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: prod(a.shape) if axis is None else a.shape[axis],
}
"""Rules of functions that write nothing, or ask only for shape, dtype and memory."""

RULES.update(_OF_SHAPES)


# ---- the module


class Namespace:
    """NumPy as `xp_of` returns it for arrays without data: new arrays have none, but for those of
    `arange`, which are short, and whose values are used as indices."""

    lib = SimpleNamespace(
        stride_tricks=SimpleNamespace(as_strided=partial(stride_tricks.as_strided, subok=True))
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> MetaArray:
        """Makes an array without data in C order."""
        return new_array([int(n) for n in (shape if np.iterable(shape) else (shape,))], dtype)

    def zeros(self, shape: Any, dtype: Any = float) -> MetaArray:
        """Makes an array without data in C order, in place of zeros."""
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = float) -> MetaArray:
        """Makes an array without data in C order, in place of ones."""
        return self.full(shape, 1, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = None) -> MetaArray:
        """Makes an array without data in C order, with the dtype of `value` by default."""
        new = self.empty(shape, np.asarray(value).dtype if dtype is None else dtype)
        new.fill(value)
        return new

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """Converts a MetaArray to this dtype, anything else by `np.asarray`."""
        if not isinstance(a, MetaArray):
            return np.asarray(a, dtype)
        return a if dtype is None else a.astype(dtype, copy=False)

    def array(self, a: Any, dtype: Any = None) -> Any:
        """Returns a copy of `a`, without data if it is a MetaArray."""
        return a.astype(dtype or a.dtype) if isinstance(a, MetaArray) else np.array(a, dtype)

    def ascontiguousarray(self, a: Any, dtype: Any = None) -> Any:
        """Returns `a` in C order, without data if it is a MetaArray."""
        if not isinstance(a, MetaArray):
            return np.ascontiguousarray(a, dtype)
        return self.asarray(a if a.flags.c_contiguous else a.copy(), dtype)


xp = Namespace()
