"""Ops that rearrange elements or join tensors, and the shape arithmetic of tensor methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import all_promoted, concatenated
from nnmpi.arrays.kernels.rows import add_rows, embedding_gradient_loop
from nnmpi.arrays.meta import copy_of, is_meta
from nnmpi.autograd.ops.elementwise import unbroadcast

Shape = tuple[int, ...]


def axis_within(axis: int, ndim: int) -> int:
    """An axis counted from 0; raises ValueError if it is out of range."""
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} is out of range for {ndim} axes")
    return axis % ndim


def reshape(a: Array, *, shape: tuple[int, ...]) -> Result:
    """The elements of `a` in C order in another shape; one length may be -1."""
    try:
        y = a.reshape(shape if a.size else _empty_shape(a.shape, shape))
    except ValueError:
        raise ValueError(
            f"reshape: {a.size} elements of shape {a.shape} do not fit {shape}"
        ) from None
    a_shape = a.shape
    return Result(y, (lambda g, out: g.reshape(a_shape),), None, True)


def _empty_shape(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Returns `new`, the shape for a reshape of an empty array of shape `old`, with a length in
    place of its -1. NumPy refuses the -1, since any length fits 0 elements.

    The length is what it would be if the leading axes that do not change were not empty: (0, 8, 8)
    to (0, -1) gives (0, 64), as (n, 8, 8) to (n, -1) gives (n, 64). Where this gives no length,
    `new` is returned unchanged.
    """
    stay = 0
    while stay < min(len(old), len(new)) and old[stay] == new[stay]:
        stay += 1
    size, known = prod(old[stay:]), prod(n for n in new[stay:] if n != -1)
    if new.count(-1) != 1 or known == 0 or size % known:
        return new
    return tuple(size // known if n == -1 else n for n in new)


def flattened(shape: Shape, start: int, end: int) -> Shape:
    """The shape with axes `start` to `end` merged into one."""
    if not shape:
        return (1,)
    first, last = axis_within(start, len(shape)), axis_within(end, len(shape))
    if first > last:
        raise ValueError(
            f"flatten: start_dim={start} comes after end_dim={end} in an input of shape {shape}"
        )
    return (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :])


def squeezed(shape: Shape, axis: int | Shape | None) -> Shape:
    """The shape without its axes of length 1: all of them, or only those listed in `axis`."""
    axes = axis if isinstance(axis, tuple) else range(len(shape)) if axis is None else (axis,)
    within = {axis_within(k, len(shape)) for k in axes} if shape else set()
    return tuple(n for k, n in enumerate(shape) if n != 1 or k not in within)


def unsqueezed(shape: Shape, axis: int | None) -> Shape:
    """The shape with a new axis of length 1 at position `axis`."""
    if axis is None:
        raise TypeError("unsqueeze: give the position of the new axis, as in t.unsqueeze(0)")
    k = axis_within(axis, len(shape) + 1)
    return (*shape[:k], 1, *shape[k:])


def split(shape: Shape, sizes: int | Sequence[int], axis: int | None) -> Iterator[Any]:
    """Yields the index that selects each part of an array of this shape along an axis; `sizes` are
    the lengths of the parts, or one length for all."""
    k = axis_within(axis or 0, len(shape))
    n = shape[k]
    if not isinstance(sizes, int | np.integer):
        lengths = [*map(int, sizes)]
        if sum(lengths) != n or min(lengths, default=0) < 0:
            raise ValueError(
                f"split: lengths {lengths} must be >= 0 and add up to {n}, the size of axis {k}"
            )
        ends = [*accumulate(lengths, initial=0)]
    else:
        if sizes < 0 or (sizes == 0 and n):
            raise ValueError(f"split: a length of {sizes} is too small; give at least 1")
        ends = [*range(0, n, sizes), n] if n else [0, 0]
    return ((slice(None),) * k + (slice(i, j),) for i, j in pairwise(ends))


def transpose(a: Array, *, axes: tuple[int, ...] | None = None) -> Result:
    """The array with its axes in another order, by default reversed."""
    order = tuple(reversed(range(a.ndim)))
    if axes is not None:
        order = tuple(axis_within(k, a.ndim) for k in axes)
    if sorted(order) != list(range(a.ndim)):
        swap = f"; t.transpose{axes} exchanges two" if len(order) == 2 else ""
        raise ValueError(f"transpose: axes {axes} are not the {a.ndim} axes in some order{swap}")
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return Result(a.transpose(order), (lambda g, out: g.transpose(back),), None, True)


def swapped(ndim: int, a: int, b: int) -> Shape:
    """The order of `ndim` axes in which axes a and b are exchanged."""
    order = list(range(ndim))
    i, j = axis_within(a, max(ndim, 1)), axis_within(b, max(ndim, 1))
    if ndim:
        order[i], order[j] = j, i
    return tuple(order)


def expanded(shape: Shape, sizes: Shape) -> Shape:
    """The sizes with each -1 replaced by that axis's length, matched from the last one."""
    lead = len(sizes) - len(shape)
    if lead < 0 or -1 in sizes[:lead]:
        raise ValueError(
            f"expand: {sizes} for a tensor of shape {shape}: give a length, or -1, for each of its "
            "axes, and before these the lengths of new axes"
        )
    return tuple(shape[k - lead] if n == -1 else n for k, n in enumerate(sizes))


def broadcast_to(a: Array, *, shape: tuple[int, ...]) -> Result:
    y, a_shape = xp_of(a).broadcast_to(a, shape), a.shape
    if y.size == a.size:  # each element once: not read-only, as NumPy's result
        y = a.reshape(shape)
    return Result(y, (lambda g, out: unbroadcast(g, a_shape),), None, True)


def getitem(a: Array, *, index: Any) -> Result:
    """a[index] for slices, integers, integer arrays and masks; a mask waits for the device."""
    xp, basic, a_shape = xp_of(a), _basic(index), a.shape
    saved_index = copied_index(index) if basic is None else basic

    def vjp(g: Array, out: Array | None) -> Array:
        da = xp.zeros(a_shape, g.dtype)
        if basic is None:
            add_at(da, saved_index, g)
        else:
            da[saved_index] = g
        return da

    # NumPy takes rows sooner than it indexes by them
    takes = type(saved_index) is np.ndarray and _takes_rows(a, saved_index)
    y = a.take(saved_index, 0) if takes else a[saved_index]
    return Result(y, (vjp,), None, basic is not None)


def _takes_rows(a: Array, rows: np.ndarray) -> bool:
    """True if `rows` are integers that select rows of NumPy's array `a`, which are in C order."""
    is_plain = type(a) is np.ndarray and a.ndim > 1 and a.flags.c_contiguous
    return is_plain and rows.dtype.kind == "i" and rows.ndim > 0


def set_elements(a: Array, value: Any, *, index: Any) -> Result:
    """A copy of `a` in which `value`, which is broadcast, has replaced a[index]."""
    is_recorded = is_meta(value, index) and not is_meta(a)
    y = copy_of(a) if is_recorded else a.copy()
    at, shape, xp = copied_index(index), getattr(value, "shape", ()), xp_of(y)
    y[at] = value.reshape(()) if getattr(value, "size", 0) == 1 else value

    def of_a(g: Array, out: Array | None) -> Array:
        d = g.copy() if g.ndim else xp.array(g)  # which may be a scalar, not an array
        d[at] = 0
        return d

    def of_value(g: Array, out: Array | None) -> Array:
        d = g[at]  # the value may have more axes of length 1 in front
        return unbroadcast(d, shape[max(len(shape) - d.ndim, 0) :]).reshape(shape)

    return Result(y, (of_a, of_value))


def add_at(to: Array, index: Any, g: Array) -> None:
    """to[index] += g, where an index that occurs several times is added each time."""
    xp = xp_of(to)
    if not isinstance(to, np.ndarray):
        places = xp.arange(to.size).reshape(to.shape)[index]
        add_rows(to.reshape(-1), places.reshape(-1), g.reshape(-1))
    elif (rows := _rows_of(index)) is not None and to.size and to.flags.c_contiguous:
        of_rows, shape = (*rows.shape, *to.shape[1:]), (-1, to.size // len(to))
        g = g if g.shape == of_rows else xp.broadcast_to(g, of_rows)  # which takes NumPy long
        g = xp.ascontiguousarray(g).reshape(shape)
        embedding_gradient_loop(g, rows.reshape(-1), to.reshape(shape))
    else:
        xp.add.at(to, index, g)  # slow


def _rows_of(index: Any) -> Array | None:
    """The array of an index that is one array of integers, for the first axis; or None."""
    (rows,) = index if isinstance(index, tuple) and len(index) == 1 else (index,)
    return rows if isinstance(rows, np.ndarray) and rows.dtype == np.int64 else None


def split_index(index: Any, ndim: int) -> tuple[Any, Any]:
    """Splits an index of an array with `ndim` axes into two, which are to be applied one after the
    other: integers, or None if there are no arrays beside them; and all else.

    So axes lie where PyTorch has them, which selects by integers first. NumPy takes integers beside
    arrays for arrays: x[0, :, [1, 2]] has the axis of length 2 in front there. An ellipsis between
    arrays that stands for no axis is left out, since it would do the same.
    """
    parts = index if type(index) is tuple else ()
    for item in parts:
        if type(item) is list or getattr(item, "ndim", 0) > 0:
            break
    else:
        return None, index
    first, rest = list[Any](), list[Any]()
    for k in parts:
        (first if _is_integer(k) else rest).append(k)
        if not _is_integer(k) and k is not None:
            first += [k] if k is Ellipsis else [slice(None)] * _axes_of(k)
    left = ndim - sum(k is not Ellipsis for k in first)
    rest = [part for k in rest for part in ([slice(None)] * left if k is Ellipsis else [k])]
    return (tuple(first) if any(map(_is_integer, parts)) else None), tuple(rest)


def _axes_of(k: Any) -> int:
    """Returns how many axes a part of an index selects from: a mask may have several."""
    if isinstance(k, slice):
        return 1
    array = k if hasattr(k, "ndim") else np.asarray(k)
    return int(array.ndim) if array.dtype.kind == "b" else 1


def _is_integer(k: Any) -> bool:
    """True for a Python or NumPy integer, and for an array of integers without axes."""
    if isinstance(k, (int, np.integer)):
        return not isinstance(k, bool)
    return getattr(k, "ndim", 1) == 0 and k.dtype.kind in "iu"


def _basic(index: Any) -> tuple[Any, ...] | None:
    """Returns an index of integers, slices and None only as a tuple; None for any other index.

    a[index] is then a view in which no element occurs twice. An ellipsis is appended, so that NumPy
    returns an array instead of a scalar. Booleans (masks) and 0-d arrays (copies) are not basic.
    """
    if type(index) is np.ndarray:
        return None
    parts = index if isinstance(index, tuple) else (index,)
    ellipsis = False
    for k in parts:
        if k is Ellipsis:
            ellipsis = True
        elif isinstance(k, bool) or not isinstance(k, _BASIC):
            return None
    return parts if ellipsis else (*parts, ...)


_BASIC = (int, np.integer, slice, type(None))


def selects_by_numbers(index: Any) -> bool:
    """True if an index has 0-d integer arrays only: NumPy copies then, where PyTorch has a view."""
    if not isinstance(index, tuple):
        return hasattr(index, "dtype") and _is_integer(index)
    arrays = [k for k in index if hasattr(k, "dtype")]
    return bool(arrays) and all(map(_is_integer, arrays)) and list not in map(type, index)


def copied_index(index: Any) -> Any:
    """A copy of an index's arrays and lists, because the backward pass reads them again."""
    if isinstance(index, tuple):
        return tuple(copied_index(k) for k in index)
    return index.copy() if hasattr(index, "copy") else index


def element_along(a: Array, index: Array, *, axis: int, keepdims: bool) -> Result:
    """The element at the position `index` of each row along `axis`, which may be kept."""
    axis = axis_within(axis, a.ndim)
    xp, a_shape, kept = xp_of(a), a.shape, (*a.shape[:axis], 1, *a.shape[axis + 1 :])
    places = index.reshape(kept)

    def vjp(g: Array, out: Array | None) -> Array:
        d = xp.zeros(a_shape, g.dtype)
        xp.put_along_axis(d, places, g.reshape(kept), axis=axis)
        return d

    y = xp.take_along_axis(a, places, axis=axis)
    return Result(y if keepdims else y.reshape(index.shape), (vjp, vjp))


def copy(a: Array) -> Result:
    return Result(a.copy(), (lambda g, out: g,))


def concatenate(*arrays: Array, axis: int = 0) -> Result:
    try:
        y = concatenated(all_promoted(arrays), axis)
    except (ValueError, IndexError):
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise ValueError(f"concatenate: shapes {shapes} do not fit along axis {axis}") from None

    ndim = y.ndim

    def part(start: int, n: int) -> Any:  # a function, so that each vjp has its own `start`
        index = [slice(None)] * ndim
        index[axis] = slice(start, start + n)
        return lambda g, out: g[tuple(index)]

    vjps, start = [], 0
    for a in arrays:
        vjps.append(part(start, a.shape[axis]))
        start += a.shape[axis]
    return Result(y, tuple(vjps))
