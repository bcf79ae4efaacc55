"""MetaArray: an array without data; AllocationCounter: the memory that such arrays would take."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from math import prod
from typing import Any, NoReturn
from weakref import ref

import numpy as np

from nnmpi.arrays.meta import shapes
from nnmpi.arrays.meta.shapes import axis_order, refuse, reserve_addresses, small, strides


class AllocationCounter:
    """Counts the bytes of live arrays that were made since counting began, and their peak."""

    def __init__(self) -> None:
        self.bytes = self.peak = 0
        # by id: a ref hashes as its array does, and arrays have no hash
        self._alive = dict[int, tuple[ref[Any], int]]()

    def count(self, array: Any) -> None:
        """Counts the bytes of an array until it is freed."""
        nbytes, alive = int(array.nbytes), ref(array, self._freed)
        self._alive[id(alive)] = alive, nbytes
        self.bytes += nbytes
        self.peak = max(self.peak, self.bytes)

    def reset_peak(self) -> None:
        """Sets the peak to the bytes that are live now."""
        self.peak = self.bytes

    def _freed(self, alive: "ref[Any]") -> None:
        self.bytes -= self._alive.pop(id(alive))[1]


counting: ContextVar[AllocationCounter | None] = ContextVar("counting", default=None)
"""The AllocationCounter that counts new arrays without data; None if they are not counted."""


class TouchCounter:
    """Counts the bytes that functions of arrays read and write."""

    def __init__(self) -> None:
        self.bytes = 0


touching: ContextVar[TouchCounter | None] = ContextVar("touching", default=None)
"""The TouchCounter of what functions of arrays without data would read and write, if any."""


def touch(*arrays: Any) -> None:
    """Counts the bytes of arrays that a function reads or writes."""
    if (counter := touching.get()) is not None:
        counter.bytes += sum(getattr(array, "nbytes", 0) for array in arrays)


def _is_same(a: Any, b: Any) -> bool:
    """True for two views of the same memory."""
    if not isinstance(b, np.ndarray) or shapes.owner(a) is not shapes.owner(b):
        return False
    return bool(a.__array_interface__ == b.__array_interface__)


RULES: dict[Any, Callable[..., Any]] = {}
"""How NumPy's functions compute on arrays without data, beside those in OF_METHODS."""

OF_METHODS = frozenset(
    {
        *(np.moveaxis, np.swapaxes, np.transpose, np.rollaxis, np.expand_dims, np.squeeze),
        *(np.reshape, np.ravel, np.flip, np.roll, np.stack, np.vstack, np.hstack, np.tile),
        *(np.repeat, np.take, np.take_along_axis, np.split, np.array_split, np.diagonal),
        *(np.sum, np.prod, np.mean, np.std, np.var, np.max, np.min, np.amax, np.amin),
        *(np.any, np.all, np.argmax, np.argmin, np.argsort, np.cumsum, np.cumprod, np.clip),
        np.argpartition,
        *(np.copy, np.atleast_1d, np.atleast_2d, np.broadcast_arrays, np.iscomplexobj),
    }
)
"""NumPy functions that need no rule: NumPy composes them of methods and of functions with rules."""


class MetaArray(np.ndarray):
    """An array without data: NumPy's shape, dtype, strides and views, at addresses that are never
    read."""

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
            touch(*inputs, out[0])
            return out[0]  # nothing is written
        touch(*inputs)
        result = getattr(ufunc, method)(*map(small, inputs), **options)
        if isinstance(result, tuple):
            return tuple(new_like(shape, item) for item in result)
        return new_like(shape, result)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in RULES:
            return RULES[function](*args, **options)
        if function not in OF_METHODS:
            refuse(f"numpy.{function.__name__}")
        return super().__array_function__(function, types, args, options)

    # ---- new arrays

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
        """Returns a view where NumPy makes one, else a new array."""
        try:
            return super().reshape(*shape, order=order, copy=False)
        except ValueError:
            given = shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape
            sizes = shapes.resolve_shape(given, self.size)
            if prod(sizes) != self.size or min(sizes) < 0:
                raise
            return new_array(sizes, self.dtype)

    def ravel(self, order: Any = "C") -> Any:
        """Returns a view where NumPy makes one, else a new array."""
        return self.reshape(-1)

    def flatten(self, order: Any = "C") -> Any:
        return new_array([self.size], self.dtype)

    def copy(self, order: Any = "C") -> Any:
        touch(self)
        return new_like(self.shape, small(self).copy(order))

    def astype(self, dtype: Any, order: Any = "K", *args: Any, copy: bool = True) -> Any:  # type: ignore[override]
        """Returns an array in another dtype; the array itself if `copy` is false and the dtype is
        the same."""
        if not copy and self.dtype == dtype:
            return self
        touch(self)
        return new_like(self.shape, small(self).astype(dtype, order))

    def take(self, indices: Any, axis: int | None = None, **options: Any) -> Any:  # type: ignore[override]
        array, k = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
        places = shapes.shape_of(np.asanyarray(indices))
        small_indices = np.zeros([min(n, 2) for n in places], int)
        shape = (*array.shape[:k], *places, *array.shape[k + 1 :])
        return new_like(shape, np.take(small(array), small_indices, axis=k))

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:  # type: ignore[override]
        array, k = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
        times = np.broadcast_to(np.asarray(repeats), array.shape[k])
        shape = (*array.shape[:k], int(times.sum()), *array.shape[k + 1 :])
        return new_like(shape, small(array).repeat(1, k))

    def dot(self, b: Any, out: Any = None) -> Any:
        return np.dot(self, b, out)

    def argsort(self, axis: Any = -1, *args: Any, **options: Any) -> Any:
        return new_like(self.shape, small(self).argsort(axis))

    def argpartition(self, kth: Any, axis: Any = -1, *args: Any, **options: Any) -> Any:
        return self.argsort(axis)

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        places = small(self).argmax(axis, keepdims=keepdims)
        return new_like(shapes.reduced(self.shape, axis, keepdims), places)

    argmin = argmax

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        array = self.reshape(-1) if axis is None else self
        return new_like(array.shape, small(array).cumsum(axis, dtype))

    cumprod = cumsum

    def __getitem__(self, index: Any) -> Any:
        if type(index) is slice:  # the most frequent index, of a flat buffer: skip the checks
            return super().__getitem__(index)
        entries = index if isinstance(index, tuple) else (index,)
        if not all(map(shapes.is_basic, entries)):
            return self._index(shapes.expand_index(entries, self.ndim))
        if ... in entries:
            return super().__getitem__(entries)
        item = super().__getitem__((*entries, ...))
        return item if item.ndim else new_array((), self.dtype)  # NumPy: a scalar

    def _index(self, index: Sequence[Any]) -> "MetaArray":
        """Indexes with slices, then with integers and integer arrays, as NumPy's advanced indexing
        does."""
        places = [k for k, entry in enumerate(index) if isinstance(entry, np.ndarray | int)]
        sliced = (slice(None) if k in places else entry for k, entry in enumerate(index))
        view, picks = super().__getitem__(tuple(sliced)), [index[k] for k in places]
        picked = [slice(None)] * view.ndim
        for k, pick in zip(places, picks, strict=True):
            picked[k] = np.zeros([min(n, 2) for n in shapes.shape_of(pick)], int)  # type: ignore[call-overload]
        return new_like(shapes.index_shape(view.shape, places, picks), small(view)[tuple(picked)])

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes nothing: an array without data has no memory."""
        is_basic = isinstance(index, slice) or index is ...
        if not (is_basic and _is_same(self[index], value)):  # NumPy does not copy a[i] += 1 back
            touch(value, value)  # read, and written

    def fill(self, value: Any) -> None:
        """Writes nothing: an array without data has no memory."""

    # ---- what asks for numbers

    def _read(self, *args: Any, **options: Any) -> NoReturn:
        """Raises NumbersReadError: in the place of methods that read values."""
        refuse("reading an array")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __contains__ = _read
    item = tolist = tobytes = nonzero = searchsorted = sort = partition = _read


def new_array(shape: Sequence[int], dtype: Any, order: Iterable[int] | None = None) -> MetaArray:
    """Makes an array without data; `order` lists its axes in memory order, by default C order."""
    dtype = np.dtype(dtype)
    byte_strides = strides(shape, dtype.itemsize, range(len(shape)) if order is None else order)
    nbytes = prod(shape) * dtype.itemsize
    try:
        memory = reserve_addresses(max(nbytes, 1).bit_length())
    except (OSError, OverflowError):
        raise MemoryError(
            f"an array of shape {tuple(shape)} and type {dtype} has {nbytes:,} bytes, more address "
            "space than this process may have; use a smaller model or batch, or raise ulimit -v"
        ) from None
    array = MetaArray(shape, dtype, memory, 0, byte_strides)
    if (live := counting.get()) is not None:
        live.count(array)
    return array


def new_like(shape: Sequence[int], example: Any) -> MetaArray:
    """Makes an array without data of this shape, with the dtype and the memory layout of an
    example."""
    example = np.asarray(example)
    array = new_array(shape, example.dtype, axis_order(example))
    touch(array)
    return array
