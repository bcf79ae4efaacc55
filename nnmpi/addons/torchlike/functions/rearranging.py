"""Functions that reverse, shift, repeat and split tensors, under PyTorch's names."""

import math
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.functions.gathering import index_select
from nnmpi.addons.torchlike.memory.reshaped_copies import note_copy
from nnmpi.addons.torchlike.ops import arrange
from nnmpi.arrays.backend import xp_of
from nnmpi.autograd.arguments import flat
from nnmpi.autograd.functional import as_tensors, tensor
from nnmpi.autograd.ops import shape
from nnmpi.autograd.tensor import Tensor, apply, on_host


def flip(t: Any, *axes_of: Any, dims: Any = ()) -> Tensor:
    """The elements in reverse order along axes, as flip(t, 0), flip(t, 0, 1) or flip(t, [0, 1])."""
    (t,) = as_tensors(t)
    axes = tuple(shape.axis_within(k, max(t.ndim, 1)) for k in flat(axes_of) or flat((dims,)))
    return apply(arrange.flip, t, axes=axes if t.ndim else ())


def roll(t: Any, shifts: Any, dims: Any = None) -> Tensor:
    """The elements shifted by `shifts` places along the axes `dims`, with those that leave the end
    put at the beginning; without axes, the flattened tensor is shifted."""
    (t,) = as_tensors(t)
    by = tuple(shifts) if isinstance(shifts, tuple | list) else (shifts,)
    axes = tuple(dims) if isinstance(dims, tuple | list) else None if dims is None else (dims,)
    if len(by) != (len(axes) if axes else 1):
        raise ValueError(f"roll: shifts {by} for dims {axes}: give one shift for each axis")
    if t.ndim == 0:
        result: Tensor = t.clone()
        return result
    return apply(arrange.roll, t, shifts=by, axes=axes or None)


def diag(t: Any, diagonal: int = 0) -> Tensor:
    """A diagonal of a matrix as a vector, or a matrix of zeros with a vector on a diagonal."""
    (t,) = as_tensors(t)
    if t.ndim not in (1, 2):
        raise ValueError(f"diag: shape {t.shape}: give a vector or a matrix")
    return apply(arrange.on_diagonal if t.ndim == 1 else arrange.diagonal, t, offset=diagonal)


def unbind(t: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without that axis, as views."""
    (t,) = as_tensors(t)
    axis = shape.axis_within(dim, t.ndim)
    return tuple(t[(slice(None),) * axis + (i,)] for i in range(t.shape[axis]))


def narrow(t: Any, dim: int, start: Any, length: int) -> Tensor:
    """The slices start to start + length - 1 along an axis, as a view."""
    (t,) = as_tensors(t)
    axis, first = shape.axis_within(dim, t.ndim), int(start)
    n = t.shape[axis]
    first += n if first < 0 else 0
    if not 0 <= first <= first + length <= n:
        raise ValueError(
            f"narrow: {length} slices from {int(start)} along axis {dim} of shape {t.shape}"
        )
    result: Tensor = t[(slice(None),) * axis + (slice(first, first + length),)]
    return result


def select(t: Any, dim: int, index: int) -> Tensor:
    """The slice at `index` along an axis, without that axis, as a view."""
    (t,) = as_tensors(t)
    result: Tensor = t[(slice(None),) * shape.axis_within(dim, t.ndim) + (index,)]
    return result


def unfold(t: Any, dimension: int, size: int, step: int) -> Tensor:
    """The windows of `size` elements along an axis, one every `step`, in a new last axis. The
    result is a copy: after a write to it or to the tensor, using the other one raises RuntimeError;
    if windows overlap, so does using the result after a write to it."""
    (t,) = as_tensors(t)
    rows = t if t.ndim else t.reshape(1)
    axis = shape.axis_within(dimension, rows.ndim)
    n = rows.shape[axis]
    if not 0 <= size <= n or step < 1:
        raise ValueError(
            f"unfold: windows of {size} with step {step} for an axis of length {n}: give a size "
            f"from 0 to {n}, and a step of at least 1"
        )
    starts = np.arange(0, n - size + 1, step)
    windows = rows[(slice(None),) * axis + (starts[:, None] + np.arange(size),)]
    order = [k for k in range(windows.ndim) if k != axis + 1]
    y = windows.permute(*order, axis + 1)
    y = y if t.ndim else y.reshape(-1)[:size]
    note_copy(t, y, step >= size)
    result: Tensor = y
    return result


def repeat(t: Any, *sizes: Any) -> Tensor:
    """The tensor repeated along each axis, as t.repeat(2, 3); further numbers add axes in front.
    NumPy calls it tile; its repeat is `repeat_interleave`."""
    (t,) = as_tensors(t)
    times = tuple(map(int, flat(sizes)))
    lead = len(times) - t.ndim
    if lead < 0:
        raise ValueError(
            f"repeat: {times} for shape {t.shape}: give a number for each axis, and before these "
            "the lengths of new axes"
        )
    lengths = (1,) * lead + t.shape
    inner = t.reshape([k for n in lengths for k in (1, n)])
    wide = inner.expand([k for m, n in zip(times, lengths, strict=True) for k in (m, n)])
    result: Tensor = wide.reshape([m * n for m, n in zip(times, lengths, strict=True)])
    is_view = xp_of(t._array).may_share_memory(result._array, t._array)
    return result.clone() if is_view else result


def tile(t: Any, *dims: Any) -> Tensor:
    """The tensor repeated along its last axes, as t.tile(2, 3); NumPy's tile."""
    (t,) = as_tensors(t)
    times = flat(dims)
    return repeat(t, (1,) * (t.ndim - len(times)) + tuple(times))


def repeat_interleave(
    t: Any, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each slice along an axis `repeats` times in a row; without an axis, each element of the
    flattened tensor. `repeats`, a number or one per slice, is read on the host."""
    (t,) = as_tensors(t)
    rows, axis = (t.reshape(-1), 0) if dim is None else (t, shape.axis_within(dim, t.ndim))
    times = np.broadcast_to(on_host(repeats), rows.shape[axis])
    index = tensor(np.repeat(np.arange(rows.shape[axis]), times), on=t.device)
    return index_select(rows, axis, index)


def unflatten(t: Any, dim: int, sizes: Any) -> Tensor:
    """The tensor with an axis divided into axes of lengths `sizes`; one may be -1."""
    (t,) = as_tensors(t)
    axis = shape.axis_within(dim, t.ndim)
    lengths = [*sizes]
    known = math.prod(n for n in lengths if n != -1)
    sizes = [t.shape[axis] // max(known, 1) if n == -1 else n for n in lengths]
    if lengths.count(-1) > 1 or math.prod(sizes) != t.shape[axis]:
        raise ValueError(
            f"unflatten: sizes {tuple(lengths)} for axis {dim} of {t.shape}: their product must be "
            f"{t.shape[axis]}; one of them may be -1"
        )
    divided: Tensor = t.reshape(*t.shape[:axis], *sizes, *t.shape[axis + 1 :])
    return divided


def movedim(t: Any, source: Any, destination: Any) -> Tensor:
    """The tensor with the axes `source` at the places `destination`, the others in their order."""
    (t,) = as_tensors(t)
    old, new = (
        [shape.axis_within(k, t.ndim) for k in (axes if isinstance(axes, tuple | list) else [axes])]
        for axes in (source, destination)
    )
    if len({*old}) != len({*new}) or len(old) != len(new):
        raise ValueError(f"movedim: axes {source} to {destination}: give as many, and each once")
    places = dict(zip(new, old, strict=True))
    others = iter(k for k in range(t.ndim) if k not in old)
    result: Tensor = t.permute(*(places[k] if k in places else next(others) for k in range(t.ndim)))
    return result


moveaxis = movedim


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid: tensor i of n holds vector i along axis i, repeated along the
    others. With indexing="xy" the first two axes are exchanged."""
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing={indexing!r} must be 'ij' or 'xy'")
    vectors = as_tensors(*(tensors[0] if isinstance(tensors[0], list | tuple) else tensors))
    if any(t.ndim > 1 for t in vectors):
        raise ValueError(f"meshgrid: shapes {[t.shape for t in vectors]}: give vectors")
    lengths = [t.numel() for t in vectors]
    n = len(lengths)
    grids = [
        t.reshape(tuple(-1 if k == i else 1 for k in range(n))).expand(*lengths)
        for i, t in enumerate(vectors)
    ]
    return tuple(g.transpose(0, 1) if indexing == "xy" and n > 1 else g for g in grids)
