"""Arrays without numbers: shape, type and layout, as tensors have on PyTorch's device `meta`.

    x = meta.like(array)     as that array, in no memory
    y = np.exp(x) @ w        a function makes an array without numbers at once

Views are NumPy's own. All of them lie in one stretch of addresses that nothing is ever read from,
so strides, bases and sizes are those that real arrays would have. What makes new arrays is carried
out on arrays with axes of length 2 at most: they tell the type and the order of axes in memory, and
a rule here the shape.

What asks for numbers raises NumbersReadError: a branch, `item`, a function without a rule.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, mmap
from typing import Any, NoReturn

import numpy as np
from numpy.lib.stride_tricks import as_strided

Shape = tuple[int, ...]


class NumbersReadError(Exception):
    """Numbers were asked for that an array does not have."""


@lru_cache(maxsize=1)
def _addresses() -> mmap:
    """Room for the largest array: 16 TB, or what a process may have. It takes no memory."""
    for bits in (44, 40, 36):
        try:
            return mmap(-1, 1 << bits, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=PROT_READ)
        except OSError:
            continue
    raise NumbersReadError("there are no addresses for an array without numbers")


def _made(shape: Sequence[int], dtype: Any, order: Iterable[int]) -> "MetaArray":
    """An array whose axes lie in this order in memory."""
    dtype, strides = np.dtype(dtype), [0] * len(shape)
    step = dtype.itemsize
    for k in reversed([*order]):
        strides[k] = step
        step *= max(shape[k], 1)
    if step > len(_addresses()):
        raise MemoryError(f"an array of shape {tuple(shape)} and type {dtype} is too large")
    return MetaArray(shape, dtype, _addresses(), 0, strides)


def memory_order(array: Any) -> Shape:
    """The axes of an array in the order in which they lie in memory, that of long strides first."""
    return tuple(sorted(range(array.ndim), key=lambda k: (-array.strides[k], k)))


def _small(value: Any) -> Any:
    """An array with the type and layout of this one, whose axes have length 2 at most."""
    if not isinstance(value, np.ndarray):
        return value
    shape = [min(n, 2) for n in value.shape]
    order = sorted(range(value.ndim), key=lambda k: -abs(value.strides[k]))
    dense = np.ones([shape[k] for k in order], value.dtype).transpose(np.argsort(order))
    steps = zip(dense.strides, value.strides, strict=True)
    strided = as_strided(dense, shape, [here if there else 0 for here, there in steps])
    return strided[tuple(slice(None, None, -1 if step < 0 else 1) for step in value.strides)]


def _as(shape: Sequence[int], small: Any) -> "MetaArray":
    """An array of this shape in the type and layout of a small one."""
    small = np.asarray(small)
    return _made(shape, small.dtype, memory_order(small))


def _shape(value: Any) -> Shape:
    return tuple(getattr(value, "shape", ()))


def _broadcast(function: Callable[..., Any], values: Sequence[Any]) -> Shape:
    """The shape of values that are broadcast; what does not fit raises NumPy's own error."""
    shapes = [_shape(value) for value in values]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        function(*(np.broadcast_to(np.ones((), np.int8), shape) for shape in shapes))
        raise


def _reduced(shape: Shape, axis: Any, keepdims: bool) -> Shape:
    """A shape without these axes, or with length 1 there."""
    given = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = {operator.index(k) % max(len(shape), 1) for k in given}
    kept = ((k, n) for k, n in enumerate(shape) if keepdims or k not in axes)
    return tuple(1 if k in axes else n for k, n in kept)


def _of_products(a: Shape, b: Shape) -> Shape:
    """The shape of a @ b."""
    lead = np.broadcast_shapes(a[:-2], b[:-2])
    return (*lead, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


class MetaArray(np.ndarray):
    """An array without numbers."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if out is not None or method == "at":
            return out[0] if out is not None else None
        if method == "reduce":
            axis, keepdims = options.get("axis", 0), options.get("keepdims", False)
            shape = _reduced(_shape(inputs[0]), axis, keepdims)
        elif method == "accumulate":
            shape = _shape(inputs[0])
        elif method != "__call__" or ufunc.signature not in (None, np.matmul.signature):
            _refuse(f"{ufunc.__name__}.{method}")
        elif ufunc.signature is None:
            shape = _broadcast(ufunc, inputs)
        else:
            shape = _of_products(_shape(inputs[0]), _shape(inputs[1]))
        found = getattr(ufunc, method)(*map(_small, inputs), **options)
        if isinstance(found, tuple):
            return tuple(_as(shape, one) for one in found)
        return _as(shape, found)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in RULES:
            return RULES[function](*args, **options)
        if function not in OF_METHODS:
            _refuse(f"numpy.{function.__name__}")
        return super().__array_function__(function, types, args, options)

    # ---- new arrays

    def reshape(self, *shape: Any, order: Any = "C", copy: bool | None = None) -> Any:
        """A view where it can be one."""
        try:
            return super().reshape(*shape, order=order, copy=False)
        except ValueError:
            sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
            sizes = [operator.index(n) for n in sizes]
            rest = prod(n for n in sizes if n != -1)
            if -1 in sizes and rest:
                sizes[sizes.index(-1)] = self.size // rest
            if prod(sizes) != self.size or copy is False:
                raise
            return _made(sizes, self.dtype, range(len(sizes)))

    def ravel(self, order: Any = "C") -> Any:
        """A view where it can be one."""
        return self.reshape(-1)

    def flatten(self, order: Any = "C") -> Any:
        """A copy in one row."""
        return _made([self.size], self.dtype, [0])

    def copy(self, order: Any = "C") -> Any:
        """A copy."""
        return _as(self.shape, _small(self).copy(order))

    def astype(
        self, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: Any = True,
        copy: Any = True,
    ) -> Any:  # fmt: skip
        """A copy in another type; the array itself if none is needed."""
        if not copy and self.dtype == dtype:
            return self
        return _as(self.shape, _small(self).astype(dtype, order, casting))

    def take(
        self, indices: Any, axis: int | None = None, out: Any = None, mode: Any = "raise"
    ) -> Any:
        """The elements with these indices along an axis."""
        along, index = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim), indices
        (array, k), shape = along, list(_shape(np.asanyarray(index)))
        small = np.take(_small(array), np.zeros([min(n, 2) for n in shape], int), axis=k)
        return _as([*array.shape[:k], *shape, *array.shape[k + 1 :]], small)

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:
        """Each element several times."""
        array, k = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
        total = array.shape[k] * repeats if isinstance(repeats, int) else int(np.sum(repeats))
        shape = [*array.shape[:k], total, *array.shape[k + 1 :]]
        return _as(shape, _small(array).repeat(1, k))

    def dot(self, b: Any, out: Any = None) -> Any:
        """np.dot."""
        return _dot(self, b, out)

    def argsort(self, axis: Any = -1, kind: Any = None, order: Any = None, **options: Any) -> Any:
        """Indices in the shape of the array."""
        return _as(self.shape, _small(self).argsort(axis))

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """An index for each row along an axis."""
        small = _small(self).argmax(axis, keepdims=keepdims)
        return _as(_reduced(self.shape, axis, keepdims), small)

    argmin = argmax

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """As long as the array."""
        array = self.reshape(-1) if axis is None else self
        return _as(array.shape, _small(array).cumsum(axis, dtype))

    cumprod = cumsum

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        if all(_is_basic(entry) for entry in entries):
            found = super().__getitem__((*entries, ...) if ... not in entries else entries)
            whole = found.ndim == 0 and ... not in entries  # NumPy returns a number: no view
            return _made((), self.dtype, ()) if whole else found
        return _chosen(self, entries)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Nothing is written."""

    def fill(self, value: Any) -> None:
        """Nothing is written."""

    # ---- what asks for numbers

    def __bool__(self) -> NoReturn:
        _refuse("the truth of an array")

    def __float__(self) -> NoReturn:
        _refuse("a number")

    __int__ = __index__ = __complex__ = __float__

    def __contains__(self, value: Any) -> NoReturn:
        _refuse("a number")

    def item(self, *args: Any) -> NoReturn:
        """Raises NumbersReadError."""
        _refuse("a number")

    tolist = tobytes = nonzero = searchsorted = item


def _refuse(what: str) -> NoReturn:
    raise NumbersReadError(f"{what} takes numbers")


def _is_basic(entry: Any) -> bool:
    """Whether an entry of an index makes a view."""
    is_number = isinstance(entry, int | np.integer) and not isinstance(entry, bool)
    return entry is None or entry is ... or isinstance(entry, slice) or is_number


def _chosen(a: MetaArray, entries: Sequence[Any]) -> MetaArray:
    """What an index with arrays takes."""
    given: list[Any] = []
    for entry in entries:
        array = entry if _is_basic(entry) else np.asanyarray(entry)
        is_mask = getattr(array, "dtype", None) == bool
        given += np.nonzero(array) if is_mask else [array]
    used = sum(entry is not None and entry is not ... for entry in given)
    rest = [slice(None)] * (a.ndim - used)
    at = next((i for i, entry in enumerate(given) if entry is ...), len(given))
    given[at : at + 1] = rest
    is_advanced = [not (entry is None or isinstance(entry, slice)) for entry in given]
    kept = [
        slice(None) if picked else entry for entry, picked in zip(given, is_advanced, strict=True)
    ]
    view = np.ndarray.__getitem__(a, tuple(kept))
    picks = [entry for entry, picked in zip(given, is_advanced, strict=True) if picked]
    lengths = np.broadcast_shapes(*map(_shape, picks))
    places = [k for k, picked in enumerate(is_advanced) if picked]
    together = places == [*range(places[0], places[-1] + 1)]
    front = [n for n, picked in zip(view.shape, is_advanced, strict=True) if not picked]
    first = places[0] if together else 0
    shape = [*front[:first], *lengths, *front[first:]]
    zeros = (np.zeros([min(n, 2) for n in _shape(entry)], int) for entry in picks)
    index = tuple(next(zeros) if picked else slice(None) for picked in is_advanced)
    return _as(shape, _small(view)[index])


# ---- functions


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if out is not None:
        return out
    first, second = _shape(a), _shape(b)
    if first and second and first[-1] != second[-2 if len(second) > 1 else 0]:
        np.dot(*(np.broadcast_to(np.ones((), np.int8), shape) for shape in (first, second)))
    if not first or not second:
        return np.multiply(a, b)
    shape = (*first[:-1], *second[:-2], *second[-1:][: len(second) - 1])
    return _as(shape, np.dot(_small(a), _small(b)))


def _where(condition: Any, *values: Any) -> Any:
    if not values:
        _refuse("numpy.where of one argument")
    arguments = condition, *values
    return _as(_broadcast(np.where, arguments), np.where(*map(_small, arguments)))


def _concatenate(
    arrays: Sequence[Any], axis: int | None = 0, out: Any = None, **options: Any
) -> Any:
    arrays = [np.reshape(a, -1) if axis is None else np.asanyarray(a) for a in arrays]
    k = (axis or 0) % arrays[0].ndim
    small = np.concatenate([_small(a) for a in arrays], k, **options)
    rest = {(*a.shape[:k], *a.shape[k + 1 :]) for a in arrays}
    if len(rest) > 1:
        np.concatenate([np.broadcast_to(np.ones((), np.int8), a.shape) for a in arrays], k)
    shape = list(arrays[0].shape)
    shape[k] = sum(a.shape[k] for a in arrays)
    return _as(shape, small)


def _like(
    a: Any, dtype: Any = None, order: Any = "K", subok: bool = True, shape: Any = None
) -> Any:
    sizes = a.shape if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    if shape is not None and len(sizes) != a.ndim:
        return _made(sizes, dtype or a.dtype, range(len(sizes)))
    return _as(sizes, np.empty_like(_small(a), dtype, order))


def _full_like(a: Any, value: Any, *args: Any, **options: Any) -> Any:
    return _like(a, *args, **options)


def _share_memory(a: Any, b: Any, *args: Any) -> bool:
    return owner(a) is owner(b)


def _broadcast_to(a: Any, shape: Any, subok: bool = True) -> Any:
    options = {"subok": True}
    return np.ndarray.__array_function__(a, np.broadcast_to, [MetaArray], [a, shape], options)


def _nothing(*args: Any, **options: Any) -> None:
    """Nothing is written."""


RULES: dict[Any, Callable[..., Any]] = {
    np.dot: _dot,
    np.where: _where,
    np.concatenate: _concatenate,
    np.empty_like: _like,
    np.zeros_like: _like,
    np.ones_like: _like,
    np.full_like: _full_like,
    np.may_share_memory: _share_memory,
    np.shares_memory: _share_memory,
    np.broadcast_to: _broadcast_to,
    np.copyto: _nothing,
    np.put_along_axis: _nothing,
    np.result_type: lambda *args: np.result_type(*map(_small, args)),
    np.shape: _shape,
    np.ndim: lambda a: len(_shape(a)),
    np.size: lambda a, axis=None: prod(_shape(a)) if axis is None else _shape(a)[axis],
}
"""What is new, or asked, of arrays without numbers."""

OF_METHODS = frozenset(
    {
        np.moveaxis, np.swapaxes, np.transpose, np.rollaxis, np.expand_dims, np.squeeze,
        np.reshape, np.ravel, np.flip, np.stack, np.vstack, np.hstack, np.tile, np.repeat,
        np.take, np.take_along_axis, np.split, np.array_split, np.roll, np.diagonal,
        np.sum, np.prod, np.mean, np.std, np.var, np.max, np.min, np.amax, np.amin, np.any, np.all,
        np.argmax, np.argmin, np.argsort, np.cumsum, np.cumprod, np.clip, np.copy,
        np.atleast_1d, np.atleast_2d, np.broadcast_arrays, np.iscomplexobj, np.isrealobj,
    }
)  # fmt: skip
"""What NumPy computes by methods and other functions of this table."""


class _Strides:
    """numpy.lib.stride_tricks."""

    @staticmethod
    def as_strided(a: Any, shape: Any = None, strides: Any = None) -> Any:
        """A view with other strides."""
        return as_strided(a, shape, strides, subok=True)


class Namespace:
    """The module of arrays without numbers, as NumPy's: new arrays have none either."""

    ndarray = MetaArray
    stride_tricks = _Strides

    @property
    def lib(self) -> "Namespace":
        """numpy.lib."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float, order: Any = "C") -> MetaArray:
        """An array, in C order."""
        sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        return _made([int(n) for n in sizes], dtype, range(len(sizes)))

    zeros = ones = empty

    def full(self, shape: Any, value: Any, dtype: Any = None) -> MetaArray:
        """An array, in C order."""
        return self.empty(shape, np.asarray(value).dtype if dtype is None else dtype)

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """The array itself, or in this type; with its numbers, if it has any."""
        if isinstance(a, MetaArray):
            return a if dtype is None else a.astype(dtype, copy=False)
        return np.asarray(a, dtype)

    def array(self, a: Any, dtype: Any = None) -> Any:
        """A copy."""
        return a.astype(dtype or a.dtype) if isinstance(a, MetaArray) else np.array(a, dtype)

    def ascontiguousarray(self, a: Any, dtype: Any = None) -> Any:
        """The array in C order."""
        if not isinstance(a, MetaArray):
            return np.ascontiguousarray(a, dtype)
        return self.asarray(a if a.flags.c_contiguous else a.copy(), dtype)


def owner(array: Any) -> Any:
    """The array that owns the memory of this one."""
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    return array


xp = Namespace()


def like(array: np.ndarray) -> MetaArray:
    """As this array, without its numbers."""
    return _made(array.shape, array.dtype, memory_order(array))


def is_meta(*values: Any) -> bool:
    """Whether any of these is, or holds, an array without numbers."""
    return any(
        is_meta(*value) if isinstance(value, tuple | list) else isinstance(value, MetaArray)
        for value in values
    )
