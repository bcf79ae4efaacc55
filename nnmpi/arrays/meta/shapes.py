"""The shapes that NumPy's functions return, and the memory layout of arrays without data.

Arguments that do not fit raise NumPy's own error.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, mmap
from typing import Any, NoReturn

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnmpi.arrays.meta.log import log_call, refused

Shape = tuple[int, ...]


def shape_of(value: Any) -> Shape:
    """Returns the shape of an array; () for a number."""
    return tuple(getattr(value, "shape", ()))


def stand_in(shape: Shape) -> np.ndarray:
    """Makes an array of one byte, on which NumPy's functions can check shapes."""
    return np.broadcast_to(np.ones((), np.int8), shape)


def broadcast(function: Callable[..., Any], values: Sequence[Any]) -> Shape:
    """Returns the shape of `function(*values)`, which broadcasts its arguments."""
    shapes = [*map(shape_of, values)]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        function(*map(stand_in, shapes))
        raise


def reduced(shape: Shape, axis: Any, keepdims: bool) -> Shape:
    """Returns `shape` without the axes of a reduction, or with length 1 there if `keepdims`."""
    given = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = {operator.index(k) % max(len(shape), 1) for k in given}
    kept = ((k, n) for k, n in enumerate(shape) if keepdims or k not in axes)
    return tuple(1 if k in axes else n for k, n in kept)


def matmul(a: Any, b: Any) -> Shape:
    """Returns the shape of a @ b."""
    first, second = shape_of(a), shape_of(b)
    if first[-1:] != second[-2:-1] + second[-1:] * (len(second) == 1):
        np.matmul(stand_in(first), stand_in(second))
    lead = np.broadcast_shapes(first[:-2], second[:-2])
    return (*lead, *first[-2:-1], *(second[-1:] if len(second) > 1 else ()))


def dot(a: Any, b: Any) -> Shape:
    """Returns the shape of np.dot(a, b)."""
    first, second = shape_of(a), shape_of(b)
    if not first or not second:
        return first or second
    if first[-1] != second[-2 if len(second) > 1 else 0]:
        np.dot(stand_in(first), stand_in(second))
    return (*first[:-1], *second[:-2], *second[-1:][: len(second) - 1])


def concatenated(arrays: Sequence[Any], axis: int) -> Shape:
    """Returns the shape of arrays joined along an axis."""
    shapes = [*map(shape_of, arrays)]
    if len({(*shape[:axis], None, *shape[axis + 1 :]) for shape in shapes}) > 1:
        np.concatenate([*map(stand_in, shapes)], axis)
    length = sum(shape[axis] for shape in shapes)
    return (*shapes[0][:axis], length, *shapes[0][axis + 1 :])


def resolve_shape(shape: Iterable[Any], size: int) -> Shape:
    """Replaces a -1 in `shape` by the length that makes `size` elements, as reshape does."""
    sizes = [operator.index(n) for n in shape]
    if -1 in sizes:
        k = sizes.index(-1)
        rest = int(np.prod([n for i, n in enumerate(sizes) if i != k], dtype=int))
        sizes[k] = size // rest if rest else -1
    return tuple(sizes)


# ---- indices


_BASIC = (slice, int, type(None))


def is_basic(entry: Any) -> bool:
    """True if this entry of an index is basic: a slice, an integer, None or an ellipsis."""
    if type(entry) in _BASIC:  # most entries: skip the checks below
        return True
    return entry is ... or (isinstance(entry, int | np.integer) and type(entry) is not bool)


def expand_index(entries: Sequence[Any], ndim: int) -> list[Any]:
    """Expands an index to an entry for each axis: ellipses to slices, masks to integers; None
    stays."""
    full: list[Any] = []
    for entry in entries:
        array = entry if is_basic(entry) else np.asanyarray(entry)
        is_mask = isinstance(array, np.ndarray) and array.dtype.kind == "b"
        full += np.nonzero(array) if is_mask else [array]
    used = sum(entry is not None and entry is not ... for entry in full)
    dots = next((i for i, entry in enumerate(full) if entry is ...), len(full))
    full[dots : dots + 1] = [slice(None)] * (ndim - used)
    return full


def index_shape(shape: Shape, places: Sequence[int], picks: Sequence[Any]) -> Shape:
    """Returns the shape of an array indexed by integer arrays (`picks`) along the axes `places`.

    The indexed axes come first if the integer arrays are not adjacent, as in NumPy.
    """
    lengths = np.broadcast_shapes(*map(shape_of, picks))
    rest = [n for k, n in enumerate(shape) if k not in places]
    first = places[0] if [*places] == [*range(places[0], places[-1] + 1)] else 0
    return (*rest[:first], *lengths, *rest[first:])


class NumbersReadError(Exception):
    """Raised when an operation needs the values of an array without data."""


def refuse(operation: str) -> NoReturn:
    """Raises NumbersReadError, which says that `operation` needs values."""
    log_call(refused)  # the code that is logged may catch the error
    raise NumbersReadError(
        f"{operation} needs values, and this array has no data: choose by where or maximum, not by "
        "if, float() or item(), and make arrays by xp_of(x).empty, not by numpy.empty"
    )


_filled: ContextVar[Callable[[int], memoryview] | None] = ContextVar("filled", default=None)

MOST_FILLED = 1 << 24
"""The largest number of bytes of an array that `addresses_filled_with` gives memory."""


def reserve_addresses(bits: int) -> mmap | memoryview:
    """Reserves 2^bits bytes of addresses, which take no memory.

    Reserve no more than the largest array needs: MPI maps memory at a fixed address when it starts.
    """
    filled = _filled.get()
    return _reserved(bits) if filled is None or 1 << bits > MOST_FILLED else filled(bits)


@lru_cache
def _reserved(bits: int) -> mmap:
    return mmap(-1, 1 << bits, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=PROT_READ)


@contextmanager
def addresses_filled_with(byte: int | None) -> Iterator[None]:
    """A context for tests: arrays without data lie in memory filled with `byte`; code that reads
    values gives other results then."""

    @lru_cache
    def filled(bits: int) -> memoryview:
        return memoryview(bytes([byte or 0]) * (1 << bits))

    token = _filled.set(None if byte is None else filled)
    try:
        yield
    finally:
        _filled.reset(token)


def axis_order(array: Any) -> tuple[int, ...]:
    """Returns the axes of an array by decreasing stride, as `strides` takes them; of axes with
    equal strides, those of length 1 come last."""
    return _axis_order(array.shape, array.strides)


@lru_cache
def _axis_order(shape: Shape, strides: Shape) -> tuple[int, ...]:
    steps = [(-abs(step), n == 1) for step, n in zip(strides, shape, strict=True)]
    return tuple(sorted(range(len(shape)), key=steps.__getitem__))


def strides(shape: Sequence[int], itemsize: int, order: Iterable[int]) -> tuple[int, ...]:
    """Returns the strides in bytes of a gapless array with its axes in this memory order."""
    by_axis, step = [0] * len(shape), itemsize
    for k in reversed([*order]):
        by_axis[k] = step
        step *= max(shape[k], 1)
    return tuple(by_axis)


def small(value: Any) -> Any:
    """Returns an example of an array with its dtype and memory layout, and axes of length 2 at
    most; that of a Number; anything else unchanged."""
    if not isinstance(value, np.ndarray):
        return getattr(value, "example", value)
    gap = 1 if value.flags.forc else 2  # NumPy takes other loops for arrays with gaps
    return _small(value.dtype, value.shape, value.strides, gap)


@lru_cache
def _small(dtype: np.dtype[Any], given_shape: Shape, given_strides: Shape, gap: int) -> np.ndarray:
    """Returns a read-only array with axes of length 2 at most for all arrays of this dtype, shape
    and strides; `gap` is the number of elements from one to the next in memory."""
    shape = [min(n, 2) for n in given_shape]
    steps = strides(shape, gap * dtype.itemsize, _axis_order(given_shape, given_strides))
    small_strides = [step if given else 0 for step, given in zip(steps, given_strides, strict=True)]
    small = as_strided(np.ones(gap << len(shape), dtype), shape, small_strides, writeable=False)
    return small[tuple(slice(None, None, -1 if step < 0 else 1) for step in given_strides)]


def owner(array: Any) -> Any:
    """Returns the array, of any library, that owns the memory of this one."""
    base = array
    while (base := getattr(base, "base", None)) is not None:  # some bases are no arrays: as_strided
        if hasattr(base, "dtype"):
            array = base
    return array
