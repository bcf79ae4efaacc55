"""Methods of tensors that PyTorch has, under its names; methods that NumPy's arrays have too are in
`base.py` and `tensor.py`.

Advice for a method that is missing belongs in `addons/torchlike/replacements.txt`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nnmpi.addons import Table, names_of
from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import fitting, is_float
from nnmpi.arrays.kernels import Result
from nnmpi.autograd.arguments import axis_of, flat, type_and_device
from nnmpi.autograd.base import TensorBase
from nnmpi.autograd.method_factories import along, method_of, reduction, scaled
from nnmpi.autograd.ops import elementwise, linear, logic, reduce, shape, softmax
from nnmpi.autograd.recording import TapeNode, memory_needed, memory_row

NAMES: Table[Any] = Table("names")
"""By a name of nnmpi, or of a package or class in it as in "nn.init": what it is."""

METHODS_ON_USE = names_of("nnmpi.Tensor")
"""By a method of tensors: where its function is, which takes the tensor first."""


def to_method(where: str) -> Callable[..., Any]:
    """Makes a method such as t.half() or t.cpu(), a short form of t.to(where)."""

    def method(self: Any) -> Any:
        return self.to(where)

    method.__doc__ = f"The tensor as by t.to({where!r})."
    return method


def _moved(a: backend.Array, *, on: backend.Backend) -> Result:
    """A copy of the array on another device, with a vjp that copies the gradient back."""
    source = backend.of(a)
    return Result(on.asarray(a), (lambda g, out: source.asarray(g),))


class TorchNames(TensorBase):
    """The tensor methods that PyTorch has and NumPy does not, or has under another name."""

    __slots__ = ()

    astype: Callable[..., Self]
    node: TapeNode | None

    @property
    def device(self) -> backend.Backend:
        """The backend of the array: `device=` accepts it, and its `type` is "cpu" or "cuda"."""
        return backend.of(self._array)

    @property
    def is_leaf(self) -> bool:
        """True unless the tensor is the result of an op that is recorded for a backward pass."""
        self.renew()
        return self.node is None

    @property
    def grad_fn(self) -> TapeNode | None:
        """The node of the op whose result the tensor is, or None."""
        self.renew()
        return self.node

    @property
    def mT(self) -> Self:
        """The tensor with its last two axes exchanged."""
        return self.transpose(-2, -1)

    def to(
        self,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        non_blocking: bool = False,
        copy: bool = False,
        memory_format: Any = None,
    ) -> Self:
        """The tensor converted to a dtype, moved to a device, or both; itself if nothing changes.
        Gradients flow back. Copies between devices are complete on return."""
        if args and isinstance(args[0], TensorBase):
            args = args[0].array.dtype, backend.of(args[0]._array)
        y, (dtype, on) = self, type_and_device(args, dtype, device)
        if on and on.is_host != self.device.is_host:
            y = self.applied(_moved, y, on=on)
        try:
            to_other = dtype is not None and np.dtype(dtype) != y._array.dtype
        except TypeError:
            raise TypeError(
                f"to: {dtype!r:.60} is neither a dtype, such as 'float32', nor one of the devices "
                f"{', '.join(backend.DEVICES)}"
            ) from None
        if to_other:
            y = y.astype(dtype)
        return y.copy() if copy and y is self else y

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Sets whether the tensor requires a gradient, and returns it."""
        self.requires_grad = requires_grad
        return self

    def contiguous(self, memory_format: Any = None) -> Self:
        """The tensor itself, or a copy if it is a view whose elements are not in C order."""
        is_alone = self.storage.sharing is None
        return self if is_alone else memory_needed("contiguous")(self)

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers, or as one number."""
        return self.numpy().tolist()

    def t(self) -> Self:
        """A matrix with its two axes exchanged; a vector or a scalar unchanged."""
        return self.T

    def allclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """True if |a - b| <= atol + rtol |b| for every element; waits for the device."""
        b = other.numpy() if isinstance(other, TensorBase) else other
        return bool(np.allclose(self.numpy(), b, rtol, atol, equal_nan))

    # ---- shapes

    def reshape(self, *sizes: int | tuple[int, ...]) -> Self:
        """The elements in another shape, if possible in the same memory: t.reshape(2, -1)."""
        y = self.applied(shape.reshape, self, shape=flat(sizes))
        is_in_order = self.viewed is None and self._array.flags.c_contiguous
        if not is_in_order and (note := memory_row("note_reshaped")):
            note(self, y)
        return y

    def transpose(self, *axes: Any) -> Self:
        """The tensor with its axes in the given order, by default reversed; two numbers exchange
        two axes.

        t.transpose(0, 1) works as in PyTorch, t.transpose((0, 1)) as in NumPy.
        """
        order = shape.swapped(len(self.shape), *axes) if len(axes) == 2 else flat(axes) or None
        return self.applied(shape.transpose, self, axes=order)

    def copy(self) -> Self:
        """A copy through which gradients flow."""
        return self.applied(shape.copy, self)

    def clone(self, *, memory_format: Any = None) -> Self:
        """A copy through which gradients flow; `memory_format` has no effect."""
        return self.applied(shape.copy, self)

    def permute(self, *dims: int | tuple[int, ...]) -> Self:
        """The tensor with its axes in the given order, which names all of them."""
        return self.applied(shape.transpose, self, axes=flat(dims))

    def expand(self, *sizes: int | tuple[int, ...]) -> Self:
        """The tensor with axes of length 1, and new ones in front, repeated; -1 keeps a length."""
        return self.applied(shape.broadcast_to, self, shape=shape.expanded(self.shape, flat(sizes)))

    def expand_as(self, other: TensorBase) -> Self:
        """The tensor broadcast to the shape of another tensor."""
        return self.expand(other.shape)

    def view_as(self, other: TensorBase) -> Self:
        """A view of the elements in the shape of another tensor."""
        return self.view(other.shape)

    def chunk(
        self, chunks: int, axis: int | None = None, *, dim: int | None = None
    ) -> tuple[Self, ...]:
        """At most `chunks` parts of equal length along `axis`; the last may be shorter."""
        k = axis_of(axis, dim, 0)
        n = self.shape[shape.axis_within(k, len(self.shape))]
        return self.split(-(-n // chunks), k)

    def cumsum(self, axis: int | None = None, *, dim: int | None = None, dtype: Any = None) -> Self:
        """The cumulative sum along `axis`, or of the flattened tensor."""
        k, t = axis_of(axis, dim), self if dtype is None else self.to(dtype)
        y = self.applied(reduce.cumsum, t.reshape(-1) if k is None else t, axis=k or 0)
        return y if dtype is None else y.to(dtype)

    # ---- elements

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """The elements limited to [min, max]; bounds that are tensors get gradients too."""
        if hasattr(min, "shape") or hasattr(max, "shape"):
            return self.applied(elementwise.clamp, self, min, max)
        return self.applied(elementwise.clip, self, low=min, high=max)

    clip = clamp

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """The elements with `value` where the mask is true; an integer tensor truncates it."""
        if isinstance(value, TorchNames):
            value = value.to(self._array.dtype)
        elif not is_float(self._array.dtype):
            dtype = self._array.dtype
            value = dtype.type(fitting(value, dtype)).item()
        t = mask if isinstance(mask, TensorBase) else self.device.asarray(mask)
        return self.applied(elementwise.where, t, value, self)

    abs = method_of(elementwise.absolute)
    neg = method_of(elementwise.negative)
    exp, log = method_of(elementwise.exp), method_of(elementwise.log)
    sqrt, tanh = method_of(elementwise.sqrt), method_of(elementwise.tanh)
    sin, cos = method_of(elementwise.sin), method_of(elementwise.cos)
    sigmoid, relu = method_of(elementwise.sigmoid), method_of(elementwise.relu)
    softmax, log_softmax = along(softmax.softmax), along(softmax.log_softmax)

    def add(self, other: Any, *, alpha: Any = 1) -> Self:
        """t + alpha * other."""
        return self.applied(elementwise.add, self, scaled(self, other, alpha))

    def sub(self, other: Any, *, alpha: Any = 1) -> Self:
        """t - alpha * other."""
        return self.applied(elementwise.subtract, self, scaled(self, other, alpha))

    mul = method_of(elementwise.multiply)
    pow, remainder = method_of(elementwise.power), method_of(elementwise.remainder)
    floor_divide = method_of(elementwise.floor_divide)
    maximum, minimum = method_of(elementwise.maximum), method_of(elementwise.minimum)
    matmul = mm = bmm = mv = dot = method_of(linear.matmul)
    eq, ne = method_of(logic.equal), method_of(logic.not_equal)
    lt, le = method_of(logic.less), method_of(logic.less_equal)
    gt, ge = method_of(logic.greater), method_of(logic.greater_equal)
    isnan, isinf = method_of(logic.isnan), method_of(logic.isinf)
    isfinite = method_of(logic.isfinite)
    argmin = reduction(logic.argmin)
    amax, amin = reduction(reduce.amax), reduction(reduce.amin)

    if TYPE_CHECKING:  # the names in METHODS_ON_USE
        from nnmpi.addons.torchlike.declared import (  # isort: skip
            abs_, add_, addcdiv, addcdiv_, addcmul, addcmul_, argsort, atan, atan_, bernoulli,
            bernoulli_, bincount, ceil, ceil_, clamp_, clamp_max_, clamp_min_, copy_, cos_,
            cumprod, cumprod_, cumsum_, diag, div, div_, equal, exp_, exponential_, fill_,
            fill_diagonal_, flip, floor, floor_, gather, histc, index_add, index_add_,
            index_select, is_contiguous, is_floating_point, kron, kthvalue, lerp, lerp_, log2,
            log2_, log_, logical_and, logical_not, logical_or, logical_xor, logsumexp,
            masked_fill_, masked_select, median, mode, moveaxis, movedim, mul_, multinomial,
            nan_to_num, nan_to_num_, narrow, neg_, new_empty, new_full, new_ones, new_tensor,
            new_zeros, nonzero, norm, normal_, outer, pow_, quantile, reciprocal, relu_,
            remainder_, repeat, repeat_interleave, retain_grad, roll, round, round_, rsqrt,  # noqa: A004
            scatter, scatter_, scatter_add, scatter_add_, scatter_reduce, scatter_reduce_,
            select, sigmoid_, sign, sin_, sort, sqrt_, square, stride, sub_, take_along_dim,
            tanh_, tile, topk, tril, triu, trunc, type, type_as, unbind, unflatten, unfold,  # noqa: A004
            uniform_, unique, zero_,
        )  # fmt: skip

    # ---- types and devices; last, since they hide Python's int, float and bool in this class

    cpu, cuda = to_method("cpu"), to_method("cuda")
    half, float, double = to_method("float16"), to_method("float32"), to_method("float64")
    bfloat16 = to_method("bfloat16")
    int, long, bool = to_method("int32"), to_method("int64"), to_method("bool")
