"""Functions of tensors that measure, compare and count: norms, distances, histograms."""

import math
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.ops import distance
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import Result
from nnmpi.autograd.functional import as_tensors, tensor, wide
from nnmpi.autograd.ops.elementwise import no_gradient
from nnmpi.autograd.tensor import Tensor, apply, on_host


def norm(
    t: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The p-norm (sum |t|^p)^(1/p) of all elements, or over the axes `dim`. "fro", the default,
    means p = 2. It may be inf, -inf, or 0, which counts the elements that are not 0."""
    (t,) = as_tensors(t)
    if dtype is not None:
        t = t.to(dtype)
    order = 2.0 if p in ("fro", None) else p
    if isinstance(order, str):
        raise ValueError(f"norm: p={p!r}: give a number, inf or 'fro'")
    axes = tuple(dim) if isinstance(dim, list) else dim
    axes = None if axes == () else axes
    options = {"axis": axes, "keepdims": keepdim}
    if math.isinf(order):
        method = abs(t).amax if order > 0 else abs(t).amin
        extreme: Tensor = method(**options)
        return extreme
    if order < 0:
        sums: Tensor = (abs(t) ** order).sum(**options) ** (1 / order)
        return sums
    return apply(distance.p_norm, t, p=float(order), **options)


def cdist(
    x1: Any,
    x2: Any,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """The p-norm distances (..., P, R) between the rows of x1 (..., P, M) and x2 (..., R, M)."""
    x1, x2 = map(wide, as_tensors(x1, x2))
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ValueError(
            f"cdist: shapes {x1.shape} and {x2.shape}: give (..., P, M) and (..., R, M)"
        )
    between = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return norm(between, p, -1) if x1.shape[-1] else between.sum(-1)


def bincount(t: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    """How often each integer 0, 1, 2, ... occurs in t, or the sum of its `weights`, as a vector of
    at least `minlength` elements; without gradients. It is computed on the host."""
    (t,) = as_tensors(t)
    summed = None if weights is None else on_host(weights)
    counts = np.bincount(on_host(t), summed, minlength)
    if summed is not None and summed.dtype == np.float32:
        counts = counts.astype(np.float32)
    return tensor(counts, on=t.device)


def histc(t: Any, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal parts of [min, max]; if min == max, that is the
    range of t. Without gradients, and computed on the host."""
    (t,) = as_tensors(t)
    values = on_host(t.detach())
    low, high = float(min), float(max)
    if low == high and values.size:
        low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"histc: the range from {low} to {high} must be finite and above 0")
    inside = values[(values >= low) & (values <= high)].astype("float64")
    place = np.floor((inside - low) * (bins / (high - low))).astype("int64").clip(0, bins - 1)
    return tensor(np.bincount(place, minlength=bins).astype(values.dtype), on=t.device)


def equal(a: Any, b: Any) -> bool:
    """True if two tensors have the same shape and equal elements; waits for the device."""
    a, b = as_tensors(a, b)
    return a.shape == b.shape and bool((a == b).all())


def unique(
    t: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements in ascending order, or the distinct slices along `dim`. With
    `return_inverse` also the index of each element of t among them, and with `return_counts` how
    often each occurs. Computed on the host; as in PyTorch a backward pass through it raises
    RuntimeError."""
    (t,) = as_tensors(t)
    options = {"return_inverse": return_inverse, "return_counts": return_counts}
    array = on_host(t.detach())
    parts = np.unique(array, **options, axis=dim, equal_nan=False)  # type: ignore[call-overload]
    values, *others = parts if isinstance(parts, tuple) else (parts,)
    distinct = apply(_distinct, t, values=t.device.asarray(values))
    if not others:
        return distinct
    return distinct, *(tensor(part, on=t.device) for part in others)


def _distinct(a: Array, *, values: Array) -> Result:
    return Result(values, (no_gradient("unique"),))


def nonzero(t: Any, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not 0: one row for each element, or with `as_tuple` one
    vector for each axis; waits for the device."""
    (t,) = as_tensors(t)
    rows = np.argwhere(on_host(t.detach()))
    if not as_tuple:
        return tensor(rows, on=t.device)
    return tuple(tensor(column, on=t.device) for column in rows.reshape(-1, max(t.ndim, 1)).T)
