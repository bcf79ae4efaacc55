"""MetaArray: an array without numbers; LiveBytes: the memory that such arrays would take."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from math import prod
from typing import Any, NoReturn
from weakref import ref

import numpy as np

from nnmpi.arrays.meta import shapes
from nnmpi.arrays.meta.shapes import addresses, axis_order, refuse, small, strides


class AllocationCounter:
    """The bytes of arrays that were made since counting began and that are alive, and the most."""

    def __init__(self) -> None:
        self.bytes = self.peak = 0
        self._alive = dict[int, tuple[ref[Any], int]]()  # arrays have no hash, so refs have none

    def count(self, array: Any) -> None:
        """Counts an array until it is freed."""
        nbytes, alive = int(array.nbytes), ref(array, self._freed)
        self._alive[id(alive)] = alive, nbytes
        self.bytes += nbytes
        self.peak = max(self.peak, self.bytes)

    def reset_peak(self) -> None:
        """Begins a new most."""
        self.peak = self.bytes

    def _freed(self, alive: "ref[Any]") -> None:
        self.bytes -= self._alive.pop(id(alive))[1]


counting: ContextVar[AllocationCounter | None] = ContextVar("counting", default=None)
"""The counter of arrays that are made, if they are counted."""


RULES: dict[Any, Callable[..., Any]] = {}
"""Rules of NumPy's functions for arrays without numbers, besides OF_METHODS."""

OF_METHODS = frozenset(
    {
        *(np.moveaxis, np.swapaxes, np.transpose, np.rollaxis, np.expand_dims, np.squeeze),
        *(np.reshape, np.ravel, np.flip, np.roll, np.stack, np.vstack, np.hstack, np.tile),
        *(np.repeat, np.take, np.take_along_axis, np.split, np.array_split, np.diagonal),
        *(np.sum, np.prod, np.mean, np.std, np.var, np.max, np.min, np.amax, np.amin),
        *(np.any, np.all, np.argmax, np.argmin, np.argsort, np.cumsum, np.cumprod, np.clip),
        *(np.copy, np.atleast_1d, np.atleast_2d, np.broadcast_arrays, np.iscomplexobj),
    }
)
"""Functions that NumPy computes by methods, and by functions that have rules."""


class MetaArray(np.ndarray):
    """An array without numbers."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if method == "at":
            return None
        if method == "reduce":
            axis, keepdims = options.get("axis", 0), options.get("keepdims", False)
            shape = shapes.reduced(shapes.shape_of(inputs[0]), axis, keepdims)
        elif method == "accumulate":
            shape = shapes.shape_of(inputs[0])
        elif method != "__call__" or ufunc.signature not in (None, np.matmul.signature):
            refuse(f"{ufunc.__name__}.{method}")
        elif ufunc.signature is None:
            shape = shapes.broadcast(ufunc, inputs)
        else:
            shape = shapes.matmul(*inputs)
        if out is not None:
            return out[0]
        result = getattr(ufunc, method)(*map(small, inputs), **options)
        if isinstance(result, tuple):
            return tuple(made_as(shape, item) for item in result)
        return made_as(shape, result)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in RULES:
            return RULES[function](*args, **options)
        if function not in OF_METHODS:
            refuse(f"numpy.{function.__name__}")
        return super().__array_function__(function, types, args, options)

    # ---- new arrays

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
        """A view where it can be one."""
        try:
            return super().reshape(*shape, order=order, copy=False)
        except ValueError:
            given = shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape
            sizes = shapes.filled(given, self.size)
            if prod(sizes) != self.size or min(sizes) < 0:
                raise
            return made(sizes, self.dtype)

    def ravel(self, order: Any = "C") -> Any:
        """A view where it can be one."""
        return self.reshape(-1)

    def flatten(self, order: Any = "C") -> Any:
        """A copy in one row."""
        return made([self.size], self.dtype)

    def copy(self, order: Any = "C") -> Any:
        """A copy."""
        return made_as(self.shape, small(self).copy(order))

    def astype(self, dtype: Any, order: Any = "K", *args: Any, copy: bool = True) -> Any:  # type: ignore[override]
        """A copy in another type; the array itself if none is needed."""
        if not copy and self.dtype == dtype:
            return self
        return made_as(self.shape, small(self).astype(dtype, order))

    def take(self, indices: Any, axis: int | None = None, **options: Any) -> Any:  # type: ignore[override]
        """The elements at these places along an axis."""
        array, k = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
        places = shapes.shape_of(np.asanyarray(indices))
        few = np.zeros([min(n, 2) for n in places], int)
        shape = (*array.shape[:k], *places, *array.shape[k + 1 :])
        return made_as(shape, np.take(small(array), few, axis=k))

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:  # type: ignore[override]
        """Each element several times."""
        array, k = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
        times = np.broadcast_to(np.asarray(repeats), array.shape[k])
        shape = (*array.shape[:k], int(times.sum()), *array.shape[k + 1 :])
        return made_as(shape, small(array).repeat(1, k))

    def dot(self, b: Any, out: Any = None) -> Any:
        """np.dot."""
        return np.dot(self, b, out)

    def argsort(self, axis: Any = -1, *args: Any, **options: Any) -> Any:
        """Places along an axis, for each element."""
        return made_as(self.shape, small(self).argsort(axis))

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """A place along an axis, for each row."""
        places = small(self).argmax(axis, keepdims=keepdims)
        return made_as(shapes.reduced(self.shape, axis, keepdims), places)

    argmin = argmax

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """As long as the array."""
        array = self.reshape(-1) if axis is None else self
        return made_as(array.shape, small(array).cumsum(axis, dtype))

    cumprod = cumsum

    def __getitem__(self, index: Any) -> Any:
        if type(index) is slice:  # most often: of a flat buffer
            return super().__getitem__(index)
        entries = index if isinstance(index, tuple) else (index,)
        if not all(map(shapes.is_basic, entries)):
            return self._picked(shapes.expanded(entries, self.ndim))
        if ... in entries:
            return super().__getitem__(entries)
        item = super().__getitem__((*entries, ...))
        return item if item.ndim else made((), self.dtype)  # a number is no view

    def _picked(self, index: Sequence[Any]) -> "MetaArray":
        """The result of indexing with integers and integer arrays, after the slices."""
        places = [k for k, entry in enumerate(index) if isinstance(entry, np.ndarray | int)]
        sliced = (slice(None) if k in places else entry for k, entry in enumerate(index))
        view, picks = super().__getitem__(tuple(sliced)), [index[k] for k in places]
        few = [slice(None)] * view.ndim
        for k, pick in zip(places, picks, strict=True):
            few[k] = np.zeros([min(n, 2) for n in shapes.shape_of(pick)], int)  # type: ignore[call-overload]
        return made_as(shapes.picked(view.shape, places, picks), small(view)[tuple(few)])

    def __setitem__(self, index: Any, value: Any) -> None:
        """Nothing is written."""

    def fill(self, value: Any) -> None:
        """Nothing is written."""

    # ---- what asks for numbers

    def _read(self, *args: Any, **options: Any) -> NoReturn:
        """Raises NumbersReadError."""
        refuse("what reads an array")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __contains__ = _read
    item = tolist = tobytes = nonzero = searchsorted = sort = partition = _read


def made(shape: Sequence[int], dtype: Any, order: Iterable[int] | None = None) -> MetaArray:
    """An array whose axes lie in this order in memory, by default that of the shape."""
    dtype = np.dtype(dtype)
    steps = strides(shape, dtype.itemsize, range(len(shape)) if order is None else order)
    nbytes = prod(shape) * dtype.itemsize
    try:
        room = addresses(max(nbytes, 1).bit_length())
    except (OSError, OverflowError):
        raise MemoryError(
            f"an array of shape {tuple(shape)} and type {dtype} has {nbytes / 1e12:,.1f} TB, more "
            "addresses than this process may have; take a smaller model or batch"
        ) from None
    array = MetaArray(shape, dtype, room, 0, steps)
    if (live := counting.get()) is not None:
        live.count(array)
    return array


def made_as(shape: Sequence[int], few: Any) -> MetaArray:
    """An array of this shape in the type and layout of a small one."""
    few = np.asarray(few)
    return made(shape, few.dtype, axis_order(few))
