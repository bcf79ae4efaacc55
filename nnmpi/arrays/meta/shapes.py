"""Shapes of what functions of NumPy return, and how arrays without numbers lie in memory.

What does not fit raises NumPy's own error.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, mmap
from typing import Any, NoReturn

import numpy as np
from numpy.lib.stride_tricks import as_strided

Shape = tuple[int, ...]


def shape_of(value: Any) -> Shape:
    """The shape of an array; of a number, no axes."""
    return tuple(getattr(value, "shape", ()))


def blank(shape: Shape) -> np.ndarray:
    """An array of this shape that takes one byte, for NumPy to check."""
    return np.broadcast_to(np.ones((), np.int8), shape)


def broadcast(function: Callable[..., Any], values: Sequence[Any]) -> Shape:
    """The shape of the result of a function that broadcasts its arguments."""
    shapes = [*map(shape_of, values)]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        function(*map(blank, shapes))
        raise


def reduced(shape: Shape, axis: Any, keepdims: bool) -> Shape:
    """A shape without these axes, or with length 1 there."""
    given = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = {operator.index(k) % max(len(shape), 1) for k in given}
    kept = ((k, n) for k, n in enumerate(shape) if keepdims or k not in axes)
    return tuple(1 if k in axes else n for k, n in kept)


def matmul(a: Any, b: Any) -> Shape:
    """The shape of a @ b."""
    first, second = shape_of(a), shape_of(b)
    if first[-1:] != second[-2:-1] + second[-1:] * (len(second) == 1):
        np.matmul(blank(first), blank(second))
    lead = np.broadcast_shapes(first[:-2], second[:-2])
    return (*lead, *first[-2:-1], *(second[-1:] if len(second) > 1 else ()))


def dot(a: Any, b: Any) -> Shape:
    """The shape of np.dot(a, b)."""
    first, second = shape_of(a), shape_of(b)
    if not first or not second:
        return first or second
    if first[-1] != second[-2 if len(second) > 1 else 0]:
        np.dot(blank(first), blank(second))
    return (*first[:-1], *second[:-2], *second[-1:][: len(second) - 1])


def concatenated(arrays: Sequence[Any], axis: int) -> Shape:
    """Arrays one behind the other along an axis."""
    shapes = [*map(shape_of, arrays)]
    if len({(*shape[:axis], None, *shape[axis + 1 :]) for shape in shapes}) > 1:
        np.concatenate([*map(blank, shapes)], axis)
    length = sum(shape[axis] for shape in shapes)
    return (*shapes[0][:axis], length, *shapes[0][axis + 1 :])


def filled(shape: Iterable[Any], size: int) -> Shape:
    """A shape of so many elements, with a length in the place of -1."""
    sizes = [operator.index(n) for n in shape]
    if -1 in sizes:
        k = sizes.index(-1)
        rest = int(np.prod([n for i, n in enumerate(sizes) if i != k], dtype=int))
        sizes[k] = size // rest if rest else -1
    return tuple(sizes)


# ---- indices


_BASIC = (slice, int, type(None))


def is_basic(entry: Any) -> bool:
    """Whether an entry of an index makes a view."""
    if type(entry) in _BASIC:  # most are
        return True
    return entry is ... or (isinstance(entry, int | np.integer) and type(entry) is not bool)


def expanded(entries: Sequence[Any], ndim: int) -> list[Any]:
    """An index with an entry for each axis, old and new: places instead of masks, slices instead
    of dots."""
    full: list[Any] = []
    for entry in entries:
        array = entry if is_basic(entry) else np.asanyarray(entry)
        is_mask = isinstance(array, np.ndarray) and array.dtype.kind == "b"
        full += np.nonzero(array) if is_mask else [array]
    used = sum(entry is not None and entry is not ... for entry in full)
    dots = next((i for i, entry in enumerate(full) if entry is ...), len(full))
    full[dots : dots + 1] = [slice(None)] * (ndim - used)
    return full


def picked(shape: Shape, places: Sequence[int], picks: Sequence[Any]) -> Shape:
    """The shape of an index by arrays along some axes: theirs come first, if these are apart."""
    lengths = np.broadcast_shapes(*map(shape_of, picks))
    rest = [n for k, n in enumerate(shape) if k not in places]
    first = places[0] if [*places] == [*range(places[0], places[-1] + 1)] else 0
    return (*rest[:first], *lengths, *rest[first:])


class NumbersReadError(Exception):
    """Numbers were asked for that an array does not have."""


def refuse(operation: str) -> NoReturn:
    """Raises NumbersReadError."""
    raise NumbersReadError(f"{operation} takes numbers")


@lru_cache
def addresses(bits: int) -> mmap:
    """Reserve 2^bits bytes of addresses, which take no memory.

    No more than the largest array needs: MPI maps memory at a fixed address when it starts.
    """
    return mmap(-1, 1 << bits, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=PROT_READ)


def axis_order(array: Any) -> tuple[int, ...]:
    """The axes of an array, that of long strides first, for `strides` to make these again: of equal
    ones, axes of length 1 are inside."""
    return _nesting(array.shape, array.strides)


@lru_cache
def _nesting(shape: Shape, strides: Shape) -> tuple[int, ...]:
    steps = [(-abs(step), n == 1) for step, n in zip(strides, shape, strict=True)]
    return tuple(sorted(range(len(shape)), key=steps.__getitem__))


def strides(shape: Sequence[int], itemsize: int, order: Iterable[int]) -> tuple[int, ...]:
    """The strides in bytes of an array without gaps, whose axes lie in this order."""
    by_axis, step = [0] * len(shape), itemsize
    for k in reversed([*order]):
        by_axis[k] = step
        step *= max(shape[k], 1)
    return tuple(by_axis)


def small(value: Any) -> Any:
    """An array with the type and layout of this one, whose axes have length 2 at most; what is no
    array as it is."""
    if not isinstance(value, np.ndarray):
        return value
    gap = 1 if value.flags.forc else 2  # NumPy has other loops for what has gaps
    return _small(value.dtype, value.shape, value.strides, gap)


@lru_cache
def _small(dtype: np.dtype[Any], long: Shape, given: Shape, gap: int) -> np.ndarray:
    """The small array of arrays of this shape with these strides, which cannot be written to."""
    shape = [min(n, 2) for n in long]
    steps = strides(shape, gap * dtype.itemsize, _nesting(long, given))
    kept = [step if kept_step else 0 for step, kept_step in zip(steps, given, strict=True)]
    small = as_strided(np.ones(gap << len(shape), dtype), shape, kept, writeable=False)
    return small[tuple(slice(None, None, -1 if step < 0 else 1) for step in given)]


def owner(array: Any) -> Any:
    """The array, of any library, that owns the memory of this one."""
    while hasattr(getattr(array, "base", None), "dtype"):
        array = array.base
    return array
