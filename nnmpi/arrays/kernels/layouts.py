"""The order of memory of results of elementwise ops, and of arrays that are joined."""

from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of


def in_layout(op: Callable[..., Array], *args: Any) -> Array:
    """op(*args), which is elementwise, in the order of memory of its largest argument.

    NumPy keeps this order. CuPy's ufuncs make C order of it: they are given transposed views.
    Gradients of tables have no order of memory: they add themselves.
    """
    arrays = [a for a in args if not isinstance(a, Number)]
    on_device = [hasattr(a, "strides") and not isinstance(a, np.ndarray) for a in arrays]
    if not arrays or not all(on_device):
        return op(*args)
    first = max(arrays, key=lambda a: (a.size, a.ndim))
    if first.ndim < 2 or first.flags.c_contiguous:
        return op(*args)
    order, back = _orders(first)
    return op(*(_transposed(a, order) for a in args)).transpose(back)


def concatenated(arrays: Sequence[Array], axis: int) -> Array:
    """The arrays joined along an axis, in the order of memory of the largest one."""
    first = max(arrays, key=lambda a: a.size)
    xp = xp_of(first)
    if isinstance(first, np.ndarray) or first.flags.c_contiguous:
        return xp.concatenate(arrays, axis=axis)
    order, back = _orders(first)
    return xp.concatenate([a.transpose(order) for a in arrays], axis=back[axis]).transpose(back)


def _orders(a: Array) -> tuple[list[int], list[int]]:
    """The axes in their order of memory, and where each of them is in it."""
    order = sorted(range(a.ndim), key=lambda axis: -a.strides[axis])
    return order, sorted(range(a.ndim), key=order.__getitem__)


def _transposed(a: Any, order: list[int]) -> Any:
    """A view with the axes in this order, behind leading ones where it has fewer."""
    if getattr(a, "ndim", 0) == 0:
        return a
    return a.reshape((1,) * (len(order) - a.ndim) + a.shape).transpose(order)
