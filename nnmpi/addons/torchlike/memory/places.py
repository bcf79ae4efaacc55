"""The places in a base of a view's elements, from strides and addresses."""

from typing import Any

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.meta import owner
from nnmpi.autograd.recording import AnyTensor


def base_of(t: AnyTensor) -> AnyTensor:
    """The tensor of which t is a view, through other views too; t itself if it is none."""
    block = owner(t._array)
    while (viewed := t.viewed) is not None and viewed.storage is t.storage:
        if owner(viewed._array) is not block:
            break
        t = viewed
    return t


def places_of(base: AnyTensor, view: AnyTensor) -> Any:
    """Returns the C-order index, in the tensor `base`, of each element of `view`, a view of it."""
    places = _places(base._array, view._array)
    if places is None:
        raise RuntimeError(
            f"cannot tell where in a tensor of shape {base.shape} lies its view of shape "
            f"{view.shape}, as its array has elements in common with itself: make it by clone()"
        )
    return places


def _addresses(array: Array) -> np.ndarray:
    """The address of each element."""
    found = np.full(array.shape, backend.address_of(array))
    for k, (n, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        found += (np.arange(n) * stride).reshape([-1 if i == k else 1 for i in range(array.ndim)])
    return found


def _places(base: Array, view: Array) -> Any:
    """The C-order index in the array `base` of each element of `view`, which lies in its memory;
    None if strides do not tell it, for instance because elements of `base` overlap."""
    rest, found = _addresses(view) - backend.address_of(base), np.zeros(view.shape, np.int64)
    c_order = np.cumprod([1, *base.shape[:0:-1]])[::-1] if base.ndim else ()
    axes = [axis for axis in zip(base.strides, base.shape, c_order, strict=True) if axis[1] > 1]
    axes.sort(key=lambda axis: abs(axis[0]))
    end = 0  # of the elements along the axes so far
    for stride, n, _ in axes:
        if abs(stride) <= end:
            return None
        end += abs(stride) * (n - 1)
        rest -= min(stride, 0) * (n - 1)  # from the lowest address on
    for stride, n, width in reversed(axes):
        along, rest = np.divmod(rest, abs(stride))
        if ((along < 0) | (along >= n)).any():
            return None
        found += (along if stride > 0 else n - 1 - along) * width
    return None if rest.any() else xp_of(base).asarray(found)
