"""Functions of tensors that read and write elements at the places of an index; also methods."""

from typing import Any

import numpy as np

from nnmpi.addons.torchlike.ops import gather as ops
from nnmpi.addons.torchlike.ops import scatter_reduce as ops_of_places
from nnmpi.autograd.functional import as_tensors
from nnmpi.autograd.method_factories import write_result
from nnmpi.autograd.ops import shape
from nnmpi.autograd.tensor import Tensor, apply, array_on


def gather(t: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Tensor:
    """The elements at the places `index` along an axis: y[i, j] = t[i, index[i, j]] for dim=1."""
    t, index = as_tensors(t, index)
    if not index.size:
        nothing: Tensor = t.reshape(-1)[:0].reshape(index.shape)
        return nothing
    rows, places, axis = _rows("gather", t, dim, index)
    y = apply(ops.gather, rows, places, axis=axis)
    return y.reshape(index.shape)


def take_along_dim(t: Any, indices: Any, dim: int | None = None) -> Tensor:
    """The elements at `indices` along an axis, as NumPy's take_along_axis: the other axes of t and
    `indices` are broadcast. Without an axis, t is flattened first."""
    t, indices = as_tensors(t, indices)
    if dim is None:
        return gather(t.reshape(-1), 0, indices.reshape(-1))
    axis = shape.axis_within(dim, t.ndim)
    pairs = zip(t.shape, indices.shape, strict=True)
    lengths = [max(n, m) if n and m else 0 for n, m in pairs]
    of_t, of_index = ((*lengths[:axis], u.shape[axis], *lengths[axis + 1 :]) for u in (t, indices))
    return gather(t.expand(of_t), axis, indices.expand(of_index))


def scatter(
    t: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """A copy of t with elements of `src`, or `value`, at the places `index` along an axis: y[i,
    index[i, j]] = src[i, j] for dim=1; with reduce="add" they are added."""
    if reduce not in (None, "add"):
        raise ValueError(f"scatter: reduce={reduce!r} must be None or 'add'")
    return _scattered("scatter", t, dim, index, value if src is None else src, reduce == "add")


def scatter_add(t: Any, dim: int, index: Any, src: Any) -> Tensor:
    """A copy of t with src[i, j] added to t[i, index[i, j]] for dim=1, and so along other axes."""
    return _scattered("scatter_add", t, dim, index, src, True)


def scatter_(t: Tensor, dim: int, index: Any, src: Any = None, **options: Any) -> Tensor:
    """Writes elements of `src`, or `value`, to the places `index` along an axis, as `scatter`."""
    return _written(scatter, t, dim, index, src, **options)


def scatter_add_(t: Tensor, dim: int, index: Any, src: Any) -> Tensor:
    """Adds elements of `src` to t at the places `index` along an axis, as `scatter_add`."""
    return _written(scatter_add, t, dim, index, src)


def scatter_reduce(
    t: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy of t whose elements at the places `index` along an axis are the sums, means, products
    or extremes (`reduce`: "sum", "mean", "prod", "amax" or "amin") of the elements of `src` for
    each place and, with `include_self`, of the element of t."""
    if reduce not in ops_of_places.WRITES:
        raise ValueError(
            f"scatter_reduce: reduce={reduce!r} must be one of {', '.join(ops_of_places.WRITES)}"
        )
    t, index, src = as_tensors(t, index, src)
    if not index.size:
        result: Tensor = t.clone()
        return result
    rows, places, axis = _rows("scatter_reduce", t, dim, index)
    options = {"axis": axis, "reduce": reduce, "include_self": include_self}
    source = src if src.ndim else src.reshape(1)
    return apply(ops_of_places.scatter_reduce, rows, places, source, **options).reshape(t.shape)


def scatter_reduce_(
    t: Tensor, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Writes sums, means, products or extremes to t, as `scatter_reduce`."""
    options = {"reduce": reduce, "include_self": include_self}
    return _written(scatter_reduce, t, dim, index, src, **options)


def masked_select(t: Any, mask: Any) -> Tensor:
    """The elements where the mask is true, as a vector; t and the mask are broadcast."""
    t, mask = as_tensors(t, mask)
    shape_of_both = np.broadcast_shapes(t.shape, mask.shape)
    result: Tensor = t.expand(shape_of_both)[mask.expand(shape_of_both)]
    return result


def index_select(t: Any, dim: int, index: Any) -> Tensor:
    """The slices of t at `index`, a vector or a number, along the axis `dim`."""
    t, index = as_tensors(t, index)
    if index.ndim > 1:
        raise ValueError(f"index_select: an index of shape {index.shape}: give a vector")
    rows = t if t.ndim else t.reshape(1)
    axis = shape.axis_within(dim, rows.ndim)
    y: Tensor = rows[(slice(None),) * axis + (index.reshape(-1),)]
    return y if t.ndim else y.reshape(())


def index_add(t: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Tensor:
    """A copy of t in which alpha * source[i] is added to the slice t[index[i]] along `dim`."""
    t, index, source = as_tensors(t, index, source)
    rows, added = (u if u.ndim else u.reshape(1) for u in (t, source))
    axis = shape.axis_within(dim, rows.ndim)
    y = apply(ops.index_add, rows, index.reshape(-1), added, axis=axis, alpha=alpha)
    return y.reshape(t.shape)


def index_add_(t: Tensor, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Tensor:
    """Adds alpha * source[i] to the slice t[index[i]], for each i along the axis `dim`."""
    return _written(index_add, t, dim, index, source, alpha=alpha)


def one_hot(tensor: Any, num_classes: int = -1) -> Tensor:
    """A one-hot vector for each int64 label: 1 at the label and 0 elsewhere, along a new last axis.
    With num_classes=-1 there are as many classes as the labels need."""
    (labels,) = as_tensors(tensor)
    index = labels.numpy()
    highest = int(index.max(initial=-1))
    classes = highest + 1 if num_classes == -1 else num_classes
    if index.dtype.kind not in "iu" or index.min(initial=0) < 0 or highest >= classes:
        raise ValueError(
            f"one_hot: {index.dtype} labels from {index.min(initial=0)} to {highest} for {classes} "
            "classes: they must be integers of at least 0, below the number of classes"
        )
    return Tensor(array_on(labels.device, np.eye(classes, dtype="int64")[index]))


def _rows(name: str, t: Tensor, dim: int, index: Tensor) -> tuple[Tensor, Tensor, int]:
    """Returns (t, index, axis from 0), the first two with at least one axis; raises an error if the
    index or the axis is unusable."""
    rows = t if t.ndim else t.reshape(1)
    places = index if index.ndim else index.reshape(1)
    if rows.ndim != places.ndim and places.size:
        raise ValueError(
            f"{name}: an index of shape {index.shape} for a tensor of shape {t.shape}: give one "
            "with as many axes"
        )
    if index.dtype.kind not in "iu":
        raise TypeError(f"{name}: an index is of integers, not of {index.dtype}")
    return rows, places, shape.axis_within(dim, rows.ndim)


def _scattered(name: str, t: Any, dim: int, index: Any, source: Any, adds: bool) -> Tensor:
    t, index = as_tensors(t, index)
    rows, places, axis = _rows(name, t, dim, index)
    if not index.size:
        result: Tensor = t.clone()
        return result
    if isinstance(source, Tensor) and source.ndim == 0 and index.ndim == 0:
        source = source.reshape(1)
    return apply(ops.scatter, rows, places, source, axis=axis, adds=adds).reshape(t.shape)


def _written(function: Any, t: Tensor, dim: int, *operands: Any, **options: Any) -> Tensor:
    if any(map(t.loses_gradient, operands)) and t.may_become(t):
        return t.become(function(t, dim, *operands, **options))
    for value in operands:
        t.to_write(value if isinstance(value, Tensor) else 0)
    result: Tensor = write_result(t, function(Tensor(t._array), dim, *operands, **options)._array)
    return result
