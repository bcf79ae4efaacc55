"""Methods of tensors under PyTorch's names, beside those of an ndarray.

A method that there is not belongs in `replacements.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.kernels import Result
from nnmpi.autograd.arguments import axis_of, flat, type_and_device
from nnmpi.autograd.base import TensorBase, along, method_of, reduction
from nnmpi.autograd.ops import elementwise, linear, logic, reduce, shape, softmax


def to_method(where: str) -> Callable[..., Any]:
    """The method that gives the values in a type, or on a device."""

    def method(self: Any) -> Any:
        return self.to(where)

    method.__doc__ = f"The tensor as by t.to({where!r})."
    return method


def _is_array(bound: Any) -> bool:
    """Whether an argument has axes, or a gradient."""
    return getattr(bound, "ndim", 0) > 0 or getattr(bound, "requires_grad", False)


def _moved(a: backend.Array, *, on: backend.Backend) -> Result:
    """A copy on another device."""
    here = backend.of(a)
    return Result(on.asarray(a), (lambda g, out: here.asarray(g),))


class TorchNames(TensorBase):
    """The methods that PyTorch has and NumPy has not, or under another name."""

    __slots__ = ()

    astype: Callable[..., Self]

    @property
    def device(self) -> backend.Backend:
        """The backend of the array: `device=` takes it, and its `type` is "cpu" or "cuda"."""
        return backend.of(self.operand)

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        return self.transpose(-2, -1)

    def to(
        self,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Self:
        """The tensor in a type, on a device, or in both of another tensor: itself if it is there.

        Gradients flow back. A copy between devices is complete when this returns.
        """
        if args and isinstance(args[0], TensorBase):
            args = args[0].data.dtype, backend.of(args[0].operand)
        y, (dtype, on) = self, type_and_device(args, dtype, device)
        if on and on.is_host != self.device.is_host:
            y = self.applied(_moved, y, on=on)
        if dtype is not None and np.dtype(dtype) != y.operand.dtype:
            y = y.astype(dtype)
        return y.copy() if copy and y is self else y

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """The tensor itself, which from now on requires a gradient or not."""
        self.requires_grad = requires_grad
        return self

    def contiguous(self) -> Self:
        """The tensor itself: no method needs another order in memory."""
        return self

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def tolist(self) -> Any:
        """The values as nested lists of Python's numbers, or as a number."""
        return self.numpy().tolist()

    def t(self) -> Self:
        """The two axes exchanged; a vector, or a number, as it is."""
        return self.T

    def allclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Whether |a - b| <= atol + rtol |b| everywhere; waits for the device."""
        b = other.numpy() if isinstance(other, TensorBase) else other
        return bool(np.allclose(self.numpy(), b, rtol, atol, equal_nan))

    # ---- shapes

    def reshape(self, *sizes: int | tuple[int, ...]) -> Self:
        """A tensor of the same elements in another shape: t.reshape(2, -1), t.reshape((2, -1))."""
        return self.applied(shape.reshape, self, shape=flat(sizes))

    def transpose(self, *axes: Any) -> Self:
        """The axes in another order, reversed by default; of two numbers these are exchanged.

        t.transpose(0, 1) is PyTorch's for matrices too, t.transpose((0, 1)) is NumPy's.
        """
        order = shape.swapped(len(self.shape), *axes) if len(axes) == 2 else flat(axes) or None
        return self.applied(shape.transpose, self, axes=order)

    def copy(self) -> Self:
        """A copy; gradients flow."""
        return self.applied(shape.copy, self)

    def permute(self, *dims: int | tuple[int, ...]) -> Self:
        """The axes in this order, all of which are named."""
        return self.applied(shape.transpose, self, axes=flat(dims))

    def expand(self, *sizes: int | tuple[int, ...]) -> Self:
        """Axes of length 1, and new ones in front, repeated to these lengths; -1 leaves one."""
        return self.applied(shape.broadcast_to, self, shape=shape.expanded(self.shape, flat(sizes)))

    def expand_as(self, other: TensorBase) -> Self:
        """The tensor broadcast to the shape of another."""
        return self.expand(other.shape)

    def view_as(self, other: TensorBase) -> Self:
        """The elements in the shape of another tensor."""
        return self.view(other.shape)

    def chunk(
        self, chunks: int, axis: int | None = None, *, dim: int | None = None
    ) -> tuple[Self, ...]:
        """At most so many parts of equal length along `axis`; the last may be shorter."""
        k = axis_of(axis, dim, 0)
        n = self.shape[shape.axis_within(k, len(self.shape))]
        return self.split(-(-n // chunks), k)

    def cumsum(self, axis: int | None = None, *, dim: int | None = None) -> Self:
        """The sums of the elements up to each place along `axis`; without one, in C order."""
        k = axis_of(axis, dim)
        t = self.reshape(-1) if k is None else self
        return self.applied(reduce.cumsum, t, axis=k or 0)

    # ---- elements

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """The elements limited to [min, max], numbers or tensors, which get gradients where they
        are taken."""
        if not _is_array(min) and not _is_array(max):
            return self.applied(elementwise.clip, self, low=min, high=max)
        y = self if min is None else self.applied(elementwise.where, self < min, min, self)
        return y if max is None else self.applied(elementwise.where, y > max, max, y)

    clip = clamp

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """The elements, but `value` where the mask is true."""
        t = mask if isinstance(mask, TensorBase) else self.device.asarray(mask)
        return self.applied(elementwise.where, t, value, self)

    abs = method_of(elementwise.absolute)
    neg = method_of(elementwise.negative)
    exp, log, sqrt = (
        method_of(elementwise.exp),
        method_of(elementwise.log),
        method_of(elementwise.sqrt),
    )
    sin, cos, tanh = (
        method_of(elementwise.sin),
        method_of(elementwise.cos),
        method_of(elementwise.tanh),
    )
    sigmoid, relu = method_of(elementwise.sigmoid), method_of(elementwise.relu)
    softmax, log_softmax = along(softmax.softmax), along(softmax.log_softmax)
    add, sub = method_of(elementwise.add), method_of(elementwise.subtract)
    mul, div = method_of(elementwise.multiply), method_of(elementwise.divide)
    pow, remainder = method_of(elementwise.power), method_of(elementwise.remainder)
    floor_divide = method_of(elementwise.floor_divide)
    maximum, minimum = method_of(elementwise.maximum), method_of(elementwise.minimum)
    matmul = mm = bmm = mv = dot = method_of(linear.matmul)
    eq, ne = method_of(logic.equal), method_of(logic.not_equal)
    lt, le = method_of(logic.less), method_of(logic.less_equal)
    gt, ge = method_of(logic.greater), method_of(logic.greater_equal)
    isnan, isinf, isfinite = (
        method_of(logic.isnan),
        method_of(logic.isinf),
        method_of(logic.isfinite),
    )
    argmin = reduction(logic.argmin)
    amax, amin = reduction(reduce.max), reduction(reduce.min)
    clone = method_of(shape.copy)

    # ---- types and devices; last, since these are names of Python's types

    cpu, cuda = to_method("cpu"), to_method("cuda")
    half, float, double = to_method("float16"), to_method("float32"), to_method("float64")
    int, long, bool = to_method("int32"), to_method("int64"), to_method("bool")
