"""The methods of tensors that come in families, and those that are made of other methods.

Where a method takes an axis, it takes NumPy's names (axis, keepdims) and PyTorch's (dim, keepdim).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from nnmpi.autograd.arguments import axis_of, keeps_axes, one_of
from nnmpi.autograd.ops import reduce
from nnmpi.autograd.ops.shape import axis_within
from nnmpi.kernels import Result

if TYPE_CHECKING:
    from nnmpi.autograd.tensor import Tensor

Op = Callable[..., Result]
Method = Callable[..., "Tensor"]


def _named(method: Method, op: Op) -> Method:
    """The method under the name of the op, which Python's messages about arguments show."""
    method.__name__, method.__doc__ = op.__name__, op.__doc__
    method.__qualname__ = f"Tensor.{op.__name__}"
    return method


def binary(op: Op) -> tuple[Method, Method]:
    """An operator and its reflection."""

    def straight(self: Tensor, other: Any) -> Tensor:
        return self.apply(op, self, other)

    def reflected(self: Tensor, other: Any) -> Tensor:
        return self.apply(op, other, self)

    return straight, reflected


def comparison(op: Op) -> Method:
    """A comparison; None is left to Python, which compares identities."""

    def method(self: Tensor, other: Any) -> Tensor:
        return NotImplemented if other is None else self.apply(op, self, other)

    return method


def reduction(op: Op) -> Method:
    """t.sum(), t.sum(1), t.sum(axis=(0, 2), keepdims=True), t.sum(dim=1, keepdim=True)."""

    def method(
        self: Tensor,
        axis: reduce.Axis = None,
        keepdims: bool | None = None,
        *,
        dim: reduce.Axis = None,
        keepdim: bool | None = None,
    ) -> Tensor:
        return self.apply(op, self, axis=axis_of(axis, dim), keepdims=keeps_axes(keepdims, keepdim))

    return _named(method, op)


def spread(op: Op) -> Method:
    """t.var(), t.var(1), t.var(1, ddof=1), t.var(dim=1, correction=1)."""

    def method(
        self: Tensor,
        axis: reduce.Axis = None,
        *,
        ddof: float | None = None,
        keepdims: bool | None = None,
        dim: reduce.Axis = None,
        correction: float | None = None,
        keepdim: bool | None = None,
    ) -> Tensor:
        less = one_of("ddof", ddof, "correction", correction)
        return self.apply(
            op,
            self,
            axis=axis_of(axis, dim),
            ddof=0 if less is None else less,
            keepdims=keeps_axes(keepdims, keepdim),
        )

    return _named(method, op)


def cumsum(self: Tensor, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """The sums of the elements up to each place along `axis`; without one, of all in C order."""
    along = axis_of(axis, dim)
    t, k = (self.reshape(-1), 0) if along is None else (self, along)
    return self.apply(reduce.cumsum, t, axis=k)


def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from start_dim to end_dim as one; all of them by default."""
    if self.ndim == 0:
        return self.reshape(1)
    first, last = axis_within(start_dim, self.ndim), axis_within(end_dim, self.ndim)
    if first > last:
        raise ValueError(
            f"flatten: start_dim={start_dim} comes after end_dim={end_dim} in an input of shape "
            f"{self.shape}"
        )
    shape = self.shape
    return self.reshape(*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :])


def squeeze(self: Tensor, axis: reduce.Axis = None, *, dim: reduce.Axis = None) -> Tensor:
    """Without the axes of length 1: all of these, or those in `axis` that have it."""
    given = axis_of(axis, dim)
    axes = given if isinstance(given, tuple) else range(self.ndim) if given is None else (given,)
    within = {axis_within(k, self.ndim) for k in axes} if self.ndim else set()
    kept = (n for k, n in enumerate(self.shape) if n != 1 or k not in within)
    return self.reshape(tuple(kept))


def unsqueeze(self: Tensor, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """With a new axis of length 1 at this place."""
    place = axis_of(axis, dim)
    if place is None:
        raise TypeError("unsqueeze: needs the place of the new axis, as in t.unsqueeze(0)")
    k = axis_within(place, self.ndim + 1)
    return self.reshape(*self.shape[:k], 1, *self.shape[k:])


def split(
    self: Tensor, sizes: int | Sequence[int], axis: int | None = None, *, dim: int | None = None
) -> tuple[Tensor, ...]:
    """Views of these lengths along `axis`, the first by default; a number is each one's length.

    The last may be shorter then. NumPy's split takes the number of parts, or where to cut.
    """
    along = axis_of(axis, dim)
    k = axis_within(0 if along is None else along, self.ndim)
    n = self.shape[k]
    if not isinstance(sizes, int | np.integer):
        lengths = [*map(int, sizes)]
        if sum(lengths) != n or min(lengths, default=0) < 0:
            raise ValueError(f"split: lengths {lengths} do not add up to {n}, that of axis {k}")
        ends = [*accumulate(lengths, initial=0)]
    else:
        if sizes < 0 or (sizes == 0 and n):
            raise ValueError(f"split: a length of {sizes} is too small; give at least 1")
        ends = [*range(0, n, sizes), n] if n else [0, 0]
    return tuple(self[(slice(None),) * k + (slice(i, j),)] for i, j in pairwise(ends))
