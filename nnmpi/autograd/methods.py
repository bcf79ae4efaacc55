"""The methods of tensors that come in families, made from ops.

Where a method takes an axis, it takes NumPy's names (axis, keepdims) and PyTorch's (dim, keepdim).
`apply` is `tensor.apply`, from arrays to tensors of type T.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from nnmpi.arrays.kernels import Result
from nnmpi.autograd.arguments import axis_of, keeps_axes, one_of
from nnmpi.autograd.ops.reduce import Dims

T = TypeVar("T")
OpFunction = Callable[..., Result]
Apply = Callable[..., T]
Method = Callable[..., T]


def named(method: Method[T], op: OpFunction) -> Method[T]:
    """The method under the name of the op, which Python's messages about arguments show."""
    method.__name__, method.__doc__ = op.__name__, op.__doc__
    method.__qualname__ = f"Tensor.{op.__name__}"
    return method


def unary(apply: Apply[T], op: OpFunction) -> Method[T]:
    """An operator of one operand."""
    return lambda self: apply(op, self)


def operator(apply: Apply[T], op: OpFunction) -> Method[T]:
    """An operator; None is left to Python, which compares identities, and refuses arithmetic."""

    def method(self: T, other: Any) -> T:
        return NotImplemented if other is None else apply(op, self, other)

    return method


def binary(apply: Apply[T], op: OpFunction) -> tuple[Method[T], Method[T]]:
    """An operator and its reflection."""
    return operator(apply, op), lambda self, other: apply(op, other, self)


def in_place(apply: Apply[T], op: OpFunction) -> Method[T]:
    """An operator that writes into its left operand."""

    def method(self: Any, other: Any) -> T:
        leaf = self.requires_grad and self.node is None
        if self.loses_gradient(other) and not leaf:
            return apply(op, self, other)  # `loss += term`: the name is bound to a new tensor
        new = op(self.operand, self.to_write(other)).value
        if not np.can_cast(new.dtype, self.dtype, "same_kind"):
            raise TypeError(f"{new.dtype} results do not fit in place into a {self.dtype} tensor")
        self[...] = new
        written: T = self
        return written

    return method


def reduction(apply: Apply[T], op: OpFunction) -> Method[T]:
    """t.sum(), t.sum(1), t.sum(axis=(0, 2), keepdims=True), t.sum(dim=1, keepdim=True)."""

    def method(
        self: T,
        axis: Dims = None,
        keepdims: bool | None = None,
        *,
        dim: Dims = None,
        keepdim: bool | None = None,
    ) -> T:
        return apply(op, self, axis=axis_of(axis, dim), keepdims=keeps_axes(keepdims, keepdim))

    return named(method, op)


def spread(apply: Apply[T], op: OpFunction) -> Method[T]:
    """t.var(), t.var(1), t.var(1, ddof=1), t.var(dim=1, correction=1), t.var(1, unbiased=False)."""

    def method(
        self: T,
        axis: Dims = None,
        *,
        ddof: float | None = None,
        keepdims: bool | None = None,
        dim: Dims = None,
        correction: float | None = None,
        unbiased: bool | None = None,
        keepdim: bool | None = None,
    ) -> T:
        if unbiased is not None:
            correction = one_of("correction", correction, "unbiased", float(unbiased))
        less = one_of("ddof", ddof, "correction", correction)
        options = {"axis": axis_of(axis, dim), "keepdims": keeps_axes(keepdims, keepdim)}
        return apply(op, self, ddof=0 if less is None else less, **options)

    return named(method, op)
