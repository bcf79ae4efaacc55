"""The order of memory of elementwise results."""

from collections.abc import Callable
from numbers import Number
from typing import Any

import numpy as np

from nnmpi.backend import Array


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
    order = sorted(range(first.ndim), key=lambda axis: -first.strides[axis])
    back = sorted(range(first.ndim), key=order.__getitem__)
    return op(*(_transposed(a, order) for a in args)).transpose(back)


def _transposed(a: Any, order: list[int]) -> Any:
    """A view with the axes in this order, behind leading ones where it has fewer."""
    if getattr(a, "ndim", 0) == 0:
        return a
    return a.reshape((1,) * (len(order) - a.ndim) + a.shape).transpose(order)
