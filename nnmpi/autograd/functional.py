"""Differentiable functions of tensors, under their names in NumPy and PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.autograd.arguments import array_on
from nnmpi.autograd.ops import elementwise, shape
from nnmpi.autograd.ops import softmax as softmax_op
from nnmpi.autograd.ops.gelu import gelu_form
from nnmpi.autograd.tensor import Tensor, apply
from nnmpi.backend import CPU, Backend
from nnmpi.kernels.result import Result


def tensor(
    value: Any, dtype: Any = None, *, requires_grad: bool = False, on: Backend = CPU
) -> Tensor:
    """A tensor with a copy of `value`: an array, a tensor, a number or nested lists of numbers.

    Arrays keep their type; Python floats become float32.
    """
    if isinstance(value, Tensor):
        value = value.data
    if dtype is None and not hasattr(value, "dtype"):
        dtype = np.float32 if np.asarray(value).dtype.kind == "f" else None
    return Tensor(on.xp.array(array_on(on, value, dtype)), requires_grad)


def as_tensor(value: Any, on: Backend | None = None) -> Tensor:
    """The value itself if it is a tensor, else a constant; an array is not copied.

    Without `on`, an array stays on its backend, and numbers and lists go to the CPU.
    """
    if isinstance(value, Tensor):
        return value
    if on is None:
        on = backend.of(value) if backend.is_array(value) else CPU
    return Tensor(array_on(on, value))


def _tensors(*values: Any, others: tuple[Any, ...] = ()) -> list[Tensor]:
    """Each value as a tensor; constants go to the backend of the first tensor given."""
    on = next((backend.of(v.operand) for v in (*values, *others) if isinstance(v, Tensor)), None)
    return [as_tensor(v, on) for v in values]


def _unary(op: Callable[..., Result]) -> Callable[[Any], Tensor]:
    def function(t: Any) -> Tensor:
        return apply(op, *_tensors(t))

    function.__name__, function.__doc__ = op.__name__, op.__doc__
    return function


exp = _unary(elementwise.exp)
log = _unary(elementwise.log)
sqrt = _unary(elementwise.sqrt)
absolute = _unary(elementwise.absolute)
sin = _unary(elementwise.sin)
cos = _unary(elementwise.cos)
tanh = _unary(elementwise.tanh)
sigmoid = _unary(elementwise.sigmoid)
relu = _unary(elementwise.relu)


def gelu(t: Any, *, approximate: str = "none") -> Tensor:
    """t * Phi(t), Phi the distribution function of the standard normal; or its "tanh" form."""
    return apply(gelu_form(approximate), *_tensors(t))


def softmax(t: Any, axis: int = -1) -> Tensor:
    """exp(t) / sum(exp(t)) over `axis`."""
    return apply(softmax_op.softmax, *_tensors(t), axis=axis)


def log_softmax(t: Any, axis: int = -1) -> Tensor:
    """log(softmax(t)) over `axis`, without overflow."""
    return apply(softmax_op.log_softmax, *_tensors(t), axis=axis)


def maximum(a: Any, b: Any) -> Tensor:
    """The larger of a and b, elementwise."""
    return apply(elementwise.maximum, *_pair(a, b))


def minimum(a: Any, b: Any) -> Tensor:
    """The smaller of a and b, elementwise."""
    return apply(elementwise.minimum, *_pair(a, b))


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """a and b with at least one tensor; the other may stay a number, which has no type."""
    return (a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else (*_tensors(a), b)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the condition is true, b elsewhere."""
    return apply(elementwise.where, *_tensors(condition, others=(a, b)), a, b)


def clip(t: Any, low: float | None = None, high: float | None = None) -> Tensor:
    """t limited to [low, high]."""
    return apply(elementwise.clip, *_tensors(t), low=low, high=high)


def concatenate(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """The tensors joined along an existing axis."""
    return apply(shape.concatenate, *_tensors(*tensors), axis=axis)


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """The tensors joined along a new axis."""
    ts = _tensors(*tensors)
    if not ts:
        raise ValueError("stack: needs at least one tensor, got none")
    return concatenate([expand_dims(t, axis) for t in ts], axis=axis)


def broadcast_to(t: Any, shape_: tuple[int, ...]) -> Tensor:
    """t broadcast to a shape."""
    return apply(shape.broadcast_to, *_tensors(t), shape=shape_)


def expand_dims(t: Tensor, axis: int) -> Tensor:
    """t with a new axis of length 1."""
    k = shape.axis_within(axis, t.ndim + 1)
    return t.reshape(*t.shape[:k], 1, *t.shape[k:])


def swapaxes(t: Tensor, a: int, b: int) -> Tensor:
    """t with two axes exchanged."""
    order = list(range(t.ndim))
    i, j = shape.axis_within(a, t.ndim), shape.axis_within(b, t.ndim)
    order[i], order[j] = j, i
    return t.transpose(*order)
