"""Functions of tensors that put elements in order, or choose one by its place in the order.

They are methods too. Most return the chosen elements with their indices, and gradients go to these
elements. Elements that compare equal stay in their order, and NaNs come last.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.ops import order
from nnmpi.autograd.arguments import axis_of
from nnmpi.autograd.base import Chosen
from nnmpi.autograd.functional import as_tensors, tensor, where, wide
from nnmpi.autograd.ops import shape
from nnmpi.autograd.tensor import Tensor, apply, on_host


def sort(
    t: Any,
    axis: int | None = None,
    descending: bool = False,
    stable: bool = True,
    *,
    dim: int | None = None,
) -> Chosen:
    """The sorted elements along an axis, and their indices; the sort is stable."""
    return _sorted(t, axis_of(axis, dim, -1), descending, None)


def argsort(
    t: Any,
    axis: int | None = None,
    descending: bool = False,
    stable: bool = True,
    *,
    dim: int | None = None,
) -> Tensor:
    """The indices that sort t along an axis; the sort is stable."""
    (t,) = as_tensors(t)
    rows = t if t.ndim else t.reshape(1)
    index = apply(order.argsort, rows, axis=axis_of(axis, dim, -1), descending=descending)
    return index if t.ndim else index.reshape(())


def topk(
    t: Any,
    k: int,
    axis: int | None = None,
    largest: bool = True,
    sorted: bool = True,
    *,
    dim: int | None = None,
) -> Chosen:
    """The k largest (or smallest) elements along `axis` (default: the last), in order, and their
    indices. Of equal elements the first ones are taken; in PyTorch it is left open which ones."""
    return _sorted(t, axis_of(axis, dim, -1), largest, k)


def kthvalue(t: Any, k: int, dim: int = -1, keepdim: bool = False) -> Chosen:
    """The k-th smallest element along an axis, counted from 1, and its index. Equal elements count
    in their order; in PyTorch it is left open which index of them it is."""
    (t,) = as_tensors(t)
    n = t.shape[dim] if t.ndim else 1
    if not 1 <= k <= n:
        raise ValueError(f"kthvalue: k={k} must be 1 to {n}, the length of axis {dim} of {t.shape}")
    return _one(order.kth, t, dim, keepdim, k=k)


def median(t: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of all elements; with `dim`, the medians along this axis, and their indices.

    Of an even number of elements, it is the lower one of the two in the middle, as in PyTorch.
    NumPy's median is their mean. Equal elements count in their order along an axis, and share the
    gradient of the median of all, as in PyTorch on a CPU.
    """
    (t,) = as_tensors(t)
    if dim is None:
        return apply(order.middle, t)
    return _one(order.median, t, dim, keepdim)


def mode(t: Any, dim: int = -1, keepdim: bool = False) -> Chosen:
    """The most frequent element along an axis, the smallest of several, and the last index at which
    it occurs; in PyTorch that is the last one along axes of up to 16 elements, and any one along
    others."""
    (t,) = as_tensors(t)
    return _one(order.mode, t, dim, keepdim)


def quantile(
    t: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The quantile q, from 0 to 1, of all elements or along the axis `dim`; a vector of several q
    gives a new first axis.

    interpolation: which value to take if the quantile lies between two elements: "linear", "lower",
    "higher", "nearest", "midpoint"
    """
    t = wide(t)
    if interpolation not in _BETWEEN:
        known = ", ".join(_BETWEEN)
        raise ValueError(f"quantile: interpolation={interpolation!r} must be one of {known}")
    if isinstance(q, Tensor) and q.requires_grad:
        raise ValueError("quantile: q would get no gradient: give a number, or q.detach()")
    shares = on_host(q).astype("float64")
    if shares.ndim > 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"quantile: q={shares.tolist()}: give a number from 0 to 1, or a list")
    axis = None if dim is None or not t.ndim else shape.axis_within(dim, t.ndim)
    rows = t.reshape(-1) if axis is None else t.transpose(axis, -1)
    if not rows.shape[-1]:
        raise ValueError(f"quantile: a tensor of shape {t.shape} has no elements to choose from")
    places = _BETWEEN[interpolation](shares.reshape(-1) * (rows.shape[-1] - 1))
    below = np.floor(places).astype("int64")
    ordered = sort(rows).values
    low, high = (ordered[..., k] for k in (below, np.ceil(places).astype("int64")))
    share = tensor((places - below).astype(t.dtype), device=t.device)
    y = where(rows.isnan().any(axis=-1, keepdims=True), math.nan, low + (high - low) * share)
    y = y.unsqueeze(0).transpose(0, -1)
    if axis is None:
        y = y.reshape(-1, *(1,) * t.ndim * keepdim)
    else:
        y = y.transpose(axis + 1, -1) if keepdim else y.transpose(axis + 1, -1).squeeze(axis + 1)
    return y if shares.ndim else y[0]


_BETWEEN: dict[str, Callable[[Any], Any]] = {
    "linear": lambda place: place,
    "lower": np.floor,
    "higher": np.ceil,
    "nearest": np.rint,
    "midpoint": lambda place: (np.floor(place) + np.ceil(place)) / 2,
}
"""The place that `quantile` takes among the sorted elements, which may be between two of them."""


def _one(op: Any, t: Tensor, dim: int, keepdim: bool, **options: Any) -> Chosen:
    """Returns an element of each row of t along `dim`, and its index, which `op` chooses."""
    rows = t if t.ndim else t.reshape(1)
    index = apply(op, rows, axis=shape.axis_within(dim, rows.ndim), keepdims=keepdim, **options)
    values = apply(shape.element_along, rows, index, axis=dim, keepdims=keepdim)
    return Chosen(*(y if t.ndim else y.reshape(()) for y in (values, index)))


def _sorted(t: Any, axis: int, descending: bool, k: int | None) -> Chosen:
    (t,) = as_tensors(t)
    rows = t if t.ndim else t.reshape(1)
    axis_index = shape.axis_within(axis, rows.ndim)
    n = rows.shape[axis_index]
    if k is not None and not 0 <= k <= n:
        raise ValueError(f"topk: k={k} must be 0 to {n}, the length of axis {axis} of {t.shape}")
    index = apply(order.argsort, rows, axis=axis_index, descending=descending)
    if k is not None:
        index = index[(slice(None),) * axis_index + (slice(k),)]
    values = apply(order.take_along_axis, rows, index, axis=axis_index)
    return Chosen(values, index) if t.ndim else Chosen(values.reshape(()), index.reshape(()))
