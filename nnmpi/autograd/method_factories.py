"""Factories that make methods of tensors from ops."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import category
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import are_plain
from nnmpi.autograd.arguments import axis_of, keeps_axes, one_of, reduced_axes
from nnmpi.autograd.base import Chosen, TensorBase
from nnmpi.autograd.ops import reduce, shape

T = TypeVar("T", bound=TensorBase)
OpFunction: TypeAlias = Callable[..., Result]
Method: TypeAlias = Callable[..., Any]

NOT_GIVEN = object()
"""The default of an argument for which None has a meaning."""


def named(method: Method, op: OpFunction) -> Method:
    """Gives a generated method the name and docstring of its op, for Python's error messages."""
    method.__name__, method.__doc__ = op.__name__, op.__doc__
    method.__qualname__ = f"Tensor.{op.__name__}"
    return method


def method_of(op: OpFunction) -> Method:
    """Makes the method that applies an op to the tensor and further operands."""

    def method(self: Any, *operands: Any) -> Any:
        return self.applied(op, self, *operands)

    return named(method, op)


def operator_of(op: OpFunction) -> Callable[[T, Any], T]:
    """Makes the operator method, such as __lt__, of an op; NotImplemented for None: then t == None
    compares identities, and t + None is a TypeError."""

    def method(self: Any, other: Any) -> Any:
        return NotImplemented if other is None else self.applied(op, self, other)

    return method


def both_operators(op: OpFunction) -> tuple[Callable[[T, Any], T], Callable[[T, Any], T]]:
    """Makes the methods of an operator from its op: t + x, and its reflection x + t."""
    return operator_of(op), lambda self, other: self.applied(op, other, self)


def in_place(
    op: OpFunction, direct: Callable[[Any, Any], Any] | None = None
) -> Callable[[T, Any], T]:
    """Makes the in-place operator method for an op, such as __iadd__: it writes into its left
    operand. `direct` is Python's function, if it gives the same elements in float32."""

    def method(self: Any, other: Any) -> Any:
        if self.loses_gradient(other):
            # `loss += term` has to record the sum, which this tensor becomes. Not a leaf, which an
            # optimizer holds: the write below is refused.
            is_leaf = self._requires_grad and self.node is None
            if not is_leaf and becomes(self, self.applied(op, self.before_write(), other)):
                return self
            self.to_write(other)  # raises an error
        old, given = self._array, self.converted(other)
        if direct and are_plain(old, given) and getattr(given, "shape", old.shape) == old.shape:
            self.write_by(direct, old, given)
            return self
        return write_result(self, op(self._array, given).value)

    return method


def becomes(t: Any, y: Any) -> bool:
    """Makes a tensor the result y of an in-place op; returns False if it may not become that."""
    if not t.may_become(y):
        check_fits(t, y)
        if y.dtype == t.dtype or not t.may_become(y := y.astype(t.dtype)):
            return False
    t.become(y)
    return True


def write_result(t: Any, new: Array) -> Any:
    """Writes the result of an op, checked by `to_write`, into a tensor, and returns that."""
    check_fits(t, new)
    t.write(new)
    return t


def check_fits(t: Any, new: Any) -> None:
    """Raises an error if a tensor cannot take a result in place, for its type or its shape."""
    old = t._array
    if new.dtype is not old.dtype and category(new.dtype) > category(old.dtype):
        raise TypeError(
            f"a {t.dtype} tensor cannot take {new.dtype} results in place: make a new one, "
            f"as in x = x + y, or convert this one first with x.astype('{new.dtype}')"
        )
    if new.shape != old.shape:
        raise ValueError(
            f"a tensor of shape {t.shape} cannot take a result of shape {tuple(new.shape)} in "
            "place: make a new one, as in x = x + y"
        )


def scaled(t: Any, other: Any, alpha: Any) -> Any:
    """other * alpha, in a type that promotes that of tensor t only if that of `other` does."""
    if isinstance(alpha, int) and alpha == 1:
        return other
    y = other * alpha
    return y.to(t._array.dtype) if getattr(other, "dtype", 0) == "bool" else y


def reduction(op: OpFunction, axes: Callable[[Any, Any], Any] = reduced_axes) -> Method:
    """Makes a reduction method, to be called as t.sum(), t.sum(1), t.sum(1, True), t.sum(axis=(0,
    2), keepdims=True) or t.sum(dim=1, keepdim=True). `axes` makes one argument of axis and dim."""

    def method(
        self: Any,
        dim: reduce.Dims = None,
        keepdim: bool | None = None,
        *,
        axis: reduce.Dims = None,
        keepdims: bool | None = None,
    ) -> Any:
        options = {"axis": axes(axis, dim), "keepdims": keeps_axes(keepdims, keepdim)}
        return self.applied(op, self, **options)

    return named(method, op)


def summing(op: OpFunction) -> Method:
    """Makes a reduction method that also takes `dtype`, the type of the sum and of the result."""

    def method(
        self: Any,
        dim: reduce.Dims = None,
        keepdim: bool | None = None,
        *,
        dtype: Any = None,
        axis: reduce.Dims = None,
        keepdims: bool | None = None,
    ) -> Any:
        options = {"axis": reduced_axes(axis, dim), "keepdims": keeps_axes(keepdims, keepdim)}
        if dtype is not None:
            return self.applied(op, self.to(dtype), **options).to(dtype)
        return self.applied(op, self, **options)

    return named(method, op)


def spread(op: OpFunction) -> Method:
    """Makes `var` or `std`, which divides by n - 1, as PyTorch does, unless told otherwise:
    t.var(1), t.var(1, unbiased=False), t.var(dim=1, correction=0).

    Called with NumPy's argument names, as t.var(axis=1) or t.var(ddof=1), it divides by n - ddof.
    """

    def method(
        self: Any,
        dim: reduce.Dims = None,
        unbiased: bool | None = None,
        keepdim: bool | None = None,
        *,
        correction: float | None = None,
        axis: Any = NOT_GIVEN,
        ddof: float | None = None,
        keepdims: bool | None = None,
    ) -> Any:
        if isinstance(dim, bool):  # t.var(False)
            dim, unbiased = None, dim
        if unbiased is not None:
            correction = one_of("correction", correction, "unbiased", float(unbiased))
        delta = one_of("ddof", ddof, "correction", correction)
        if delta is None:
            delta = int(axis is NOT_GIVEN)
        over = reduced_axes(None if axis is NOT_GIVEN else axis, dim)
        return self.applied(op, self, ddof=delta, axis=over, keepdims=keeps_axes(keepdims, keepdim))

    return named(method, op)


def extreme(over_all: OpFunction, place: OpFunction, of_two: OpFunction) -> Method:
    """Makes the method `max` or `min`, with PyTorch's three meanings: of all elements, t.max();
    along an axis with the indices, t.max(1); elementwise of two tensors, t.max(u).

    Called with NumPy's argument names, as t.max(axis=1), or with several axes, it returns the
    values only. `over_all` is the op over axes, `place` that of the index, `of_two` that of two
    tensors.
    """
    values_only = reduction(over_all)

    def method(
        self: Any,
        dim: Any = None,
        keepdim: bool | None = None,
        *,
        axis: reduce.Dims = None,
        keepdims: bool | None = None,
    ) -> Any:
        if isinstance(dim, TensorBase) or backend.is_array(dim):
            return self.applied(of_two, self, dim)
        if dim is None or axis is not None or isinstance(dim, tuple | list):
            return values_only(self, dim, keepdim, axis=axis, keepdims=keepdims)
        t = self if self.shape else self.reshape(1)
        keeps = keeps_axes(keepdims, keepdim)
        index = t.applied(place, t, axis=dim, keepdims=keeps)
        values = t.applied(shape.element_along, t, index, axis=dim, keepdims=keeps)
        return Chosen(*(y if self.shape else y.reshape(()) for y in (values, index)))

    return named(method, over_all)


def along(op: OpFunction) -> Method:
    """Makes the method that applies an op along one axis, by default the last."""

    def method(self: Any, axis: int | None = None, *, dim: int | None = None) -> Any:
        return self.applied(op, self, axis=axis_of(axis, dim, -1))

    return named(method, op)
