"""MetaArray: an array without data."""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from operator import getitem, setitem
from typing import Any, NoReturn

import numpy as np

from nnmpi.arrays.meta import shapes
from nnmpi.arrays.meta.log import assign, assign_result, call_log, log_call
from nnmpi.arrays.meta.shapes import axis_order, refuse, reserve_addresses, small, strides


def _is_same(a: Any, b: Any) -> bool:
    """True if two arrays are the same view: of the same elements in the same memory."""
    if not isinstance(b, np.ndarray) or shapes.owner(a) is not shapes.owner(b):
        return False
    return bool(a.__array_interface__ == b.__array_interface__)


RULES: dict[Any, Callable[..., Any]] = {}
"""By NumPy function, how it computes on arrays without data; see also OF_METHODS."""

OF_METHODS = frozenset(
    {
        *(np.moveaxis, np.swapaxes, np.transpose, np.rollaxis, np.expand_dims, np.squeeze),
        *(np.reshape, np.ravel, np.flip, np.roll, np.stack, np.vstack, np.hstack, np.tile),
        *(np.repeat, np.take, np.take_along_axis, np.split, np.array_split, np.diagonal),
        *(np.sum, np.prod, np.mean, np.std, np.var, np.max, np.min, np.amax, np.amin),
        *(np.any, np.all, np.argmax, np.argmin, np.argsort, np.cumsum, np.cumprod, np.clip),
        np.argpartition,
        *(np.atleast_1d, np.atleast_2d, np.broadcast_arrays, np.iscomplexobj),
    }
)
"""NumPy functions without a rule, since they only call methods and functions with rules."""


class MetaArray(np.ndarray):
    """NumPy's shape, dtype, strides and views, at addresses that are never read. `is_scalar` is
    True if it has no axes and stands for what NumPy returns as a scalar."""

    is_scalar = False

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if method == "at":
            log_call(ufunc.at, *inputs)
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
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        if out is not None:
            if call_log.get() is not None and not isinstance(out[0], MetaArray):
                refuse("writing to an array with data")
            log_call(function, *inputs, **options, out=out)
            return out[0]  # nothing is written
        new = result_like(shape, function(*map(small, inputs), **options))
        log_call(function, *inputs, **options, out=new)
        return new

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in RULES:
            return RULES[function](*args, **options)
        if function not in OF_METHODS:
            refuse(f"numpy.{function.__name__}")
        return super().__array_function__(function, types, args, options)

    # ---- new arrays

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
        """Returns another shape: a view where NumPy has one, else a new array."""
        try:
            return super().reshape(*shape, order=order, copy=False)
        except ValueError:
            given = shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape
            sizes = shapes.resolve_shape(given, self.size)
            if prod(sizes) != self.size or min(sizes) < 0:
                raise
            new = new_array(sizes, self.dtype)
            log_call(assign, new.reshape(self.shape), self)
            return new

    def ravel(self, order: Any = "C") -> Any:
        """Returns one axis: a view where NumPy has one, else a new array."""
        return self.reshape(-1)

    def flatten(self, order: Any = "C") -> Any:
        new = new_array([self.size], self.dtype)
        log_call(assign, new.reshape(self.shape), self)
        return new

    def copy(self, order: Any = "C") -> Any:
        return self.astype(self.dtype, order)

    def astype(self, dtype: Any, order: Any = "K", *args: Any, copy: bool = True) -> Any:  # type: ignore[override]
        """Returns a new array of another dtype; without `copy` perhaps itself."""
        if not copy and self.dtype == dtype:
            return self
        new = new_like(self.shape, small(self).astype(dtype, order))
        new.is_scalar = self.is_scalar
        log_call(assign, new, self)
        return new

    def take(self, indices: Any, axis: int | None = None, **options: Any) -> Any:  # type: ignore[override]
        array, k = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
        places = shapes.shape_of(np.asanyarray(indices))
        small_indices = np.zeros([min(n, 2) for n in places], int)
        shape = (*array.shape[:k], *places, *array.shape[k + 1 :])
        new = result_like(shape, np.take(small(array), small_indices, axis=k))
        return logged(new, np.take, array, indices, k, **options)

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:  # type: ignore[override]
        array, k = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
        times = np.broadcast_to(np.asarray(repeats), array.shape[k])
        shape = (*array.shape[:k], int(times.sum()), *array.shape[k + 1 :])
        return logged(new_like(shape, small(array).repeat(1, k)), np.repeat, array, repeats, k)

    def mean(self, axis: Any = None, dtype: Any = None, *args: Any, **options: Any) -> Any:
        """The mean over an axis without data; float16 is added in float32, as by NumPy."""
        if dtype is None and self.dtype == np.float16:
            return super().mean(axis, np.float32, *args, **options).astype(np.float16)
        return super().mean(axis, dtype, *args, **options)

    def dot(self, b: Any, out: Any = None) -> Any:
        return np.dot(self, b, out)

    def argsort(self, axis: Any = -1, *args: Any, **options: Any) -> Any:
        new = new_like(self.shape, small(self).argsort(axis))
        return logged(new, np.argsort, self, axis, *args, **options)

    def argpartition(self, kth: Any, axis: Any = -1, *args: Any, **options: Any) -> Any:
        new = new_like(self.shape, small(self).argsort(axis))
        return logged(new, np.argpartition, self, kth, axis, *args, **options)

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        return self._place(np.argmax, axis, out, keepdims)

    def argmin(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        return self._place(np.argmin, axis, out, keepdims)

    def _place(self, function: Any, axis: Any, out: Any, keepdims: bool) -> Any:
        _refuse_out(function, out)
        places = function(small(self), axis, keepdims=keepdims)
        new = result_like(shapes.reduced(self.shape, axis, keepdims), places)
        return logged(new, function, self, axis, keepdims=keepdims)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._accumulated(np.cumsum, axis, dtype, out)

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._accumulated(np.cumprod, axis, dtype, out)

    def _accumulated(self, function: Any, axis: Any, dtype: Any, out: Any) -> Any:
        _refuse_out(function, out)
        array = self.reshape(-1) if axis is None else self
        new = new_like(array.shape, function(small(array), axis, dtype))
        return logged(new, function, array, axis, dtype)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is slice:  # the most frequent index, of a flat buffer: skip the checks
            return super().__getitem__(index)
        entries = index if isinstance(index, tuple) else (index,)
        if not all(map(shapes.is_basic, entries)):
            return self._index(shapes.expand_index(entries, self.ndim))
        item = self._view(entries)
        if item.ndim or ... in entries:
            return item
        scalar = result_like((), new_array((), self.dtype))  # NumPy's are copies
        log_call(assign, scalar, item)
        return scalar

    def _view(self, entries: tuple[Any, ...]) -> Any:
        """Returns what slices and integers select, 0-d where NumPy returns a scalar."""
        return super().__getitem__(entries if ... in entries else (*entries, ...))

    def _index(self, index: Sequence[Any]) -> "MetaArray":
        """Returns what an index with integer arrays selects: first slices, then arrays."""
        places = [k for k, entry in enumerate(index) if isinstance(entry, np.ndarray | int)]
        sliced = (slice(None) if k in places else entry for k, entry in enumerate(index))
        view, picks = super().__getitem__(tuple(sliced)), [index[k] for k in places]
        picked = [slice(None)] * view.ndim
        for k, pick in zip(places, picks, strict=True):
            picked[k] = np.zeros([min(n, 2) for n in shapes.shape_of(pick)], int)  # type: ignore[call-overload]
        shape = shapes.index_shape(view.shape, places, picks)
        return logged(new_like(shape, small(view)[tuple(picked)]), getitem, self, tuple(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes nothing: an array without data has no memory."""
        entries = index if isinstance(index, tuple) else (index,)
        if not all(map(shapes.is_basic, entries)):
            log_call(setitem, self, index, value)
        elif not _is_same(target := self._view(entries), value):  # `a[i] += 1` is not copied back
            log_call(assign, target, value)

    def fill(self, value: Any) -> None:
        log_call(assign, self, value)

    # ---- what asks for numbers

    def _read(self, *args: Any, **options: Any) -> NoReturn:
        """Raises NumbersReadError; replaces the methods that read values."""
        refuse("reading an array")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __contains__ = _read
    item = tolist = tobytes = nonzero = searchsorted = sort = partition = _read
    byteswap = choose = compress = dump = dumps = getfield = put = resize = tofile = trace = _read
    data = flat = property(_read)
    __str__ = __format__ = _read

    def __repr__(self) -> str:
        """Describes the array without its values."""
        return f"{type(self).__name__}({self.shape}, {self.dtype})"


def _refuse_out(function: Any, out: Any) -> None:
    if out is not None:
        refuse(f"numpy.{function.__name__} into given memory")


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
    return MetaArray(shape, dtype, memory, 0, byte_strides)


def new_like(shape: Sequence[int], example: Any) -> MetaArray:
    """Makes an array without data of this shape, like an example."""
    example = np.asarray(example)
    return new_array(shape, example.dtype, axis_order(example))


def result_like(shape: Sequence[int], example: Any) -> Any:
    """Does so for results: scalars without axes, each of several like its example."""
    if isinstance(example, tuple):
        return tuple(result_like(shape, item) for item in example)
    new = new_like(shape, example)
    new.is_scalar = not shape
    return new


def logged(new: MetaArray, function: Any, *args: Any, **options: Any) -> MetaArray:
    """Logs the call function(*args) for which `new` stands; returns `new`."""
    log_call(assign_result, new, function, *args, **options)
    return new
