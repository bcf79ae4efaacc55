"""Differentiable functions of tensors, under their names in NumPy and PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.autograd.arguments import array_on, axis_of
from nnmpi.autograd.ops import activations, elementwise, shape
from nnmpi.autograd.ops import softmax as softmax_op
from nnmpi.autograd.ops.activations import gelu_form
from nnmpi.autograd.ops.reduce import Axis
from nnmpi.autograd.tensor import Tensor, apply
from nnmpi.backend import CPU, Backend
from nnmpi.kernels import Result


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
silu = _unary(activations.silu)


def gelu(t: Any, *, approximate: str = "none") -> Tensor:
    """t * Phi(t), Phi the distribution function of the standard normal; or its "tanh" form."""
    return apply(gelu_form(approximate), *_tensors(t))


def leaky_relu(t: Any, negative_slope: float = 0.01) -> Tensor:
    """t where it is positive, negative_slope * t elsewhere."""
    return apply(activations.leaky_relu, *_tensors(t), slope=negative_slope)


def softmax(t: Any, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """exp(t) / sum(exp(t)) over `axis`, the last by default."""
    return apply(softmax_op.softmax, *_tensors(t), axis=_axis(axis, dim, -1))


def log_softmax(t: Any, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """log(softmax(t)) over `axis`, the last by default, without overflow."""
    return apply(softmax_op.log_softmax, *_tensors(t), axis=_axis(axis, dim, -1))


def _axis(axis: int | None, dim: int | None, default: int) -> int:
    """The axis given, by either name."""
    given: int | None = axis_of(axis, dim)
    return default if given is None else given


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


def concatenate(
    tensors: Sequence[Any], axis: int | None = None, *, dim: int | None = None
) -> Tensor:
    """The tensors joined along an existing axis, the first by default."""
    ts = _at_least_one("concatenate", tensors)
    return apply(shape.concatenate, *ts, axis=_axis(axis, dim, 0))


def stack(tensors: Sequence[Any], axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """The tensors joined along a new axis, the first by default."""
    ts, k = _at_least_one("stack", tensors), _axis(axis, dim, 0)
    return concatenate([t.unsqueeze(k) for t in ts], axis=k)


def _at_least_one(name: str, tensors: Sequence[Any]) -> list[Tensor]:
    if not len(tensors):
        raise ValueError(f"{name}: needs at least one tensor, got none")
    return _tensors(*tensors)


def broadcast_to(t: Any, shape_: tuple[int, ...]) -> Tensor:
    """t broadcast to a shape."""
    return apply(shape.broadcast_to, *_tensors(t), shape=shape_)


def flatten(t: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """t with the axes from start_dim to end_dim as one; all of them by default."""
    return _tensors(t)[0].flatten(start_dim, end_dim)


def squeeze(t: Any, axis: Axis = None, *, dim: Axis = None) -> Tensor:
    """t without the axes of length 1: all of these, or those in `axis` that have it."""
    return _tensors(t)[0].squeeze(axis, dim=dim)


def unsqueeze(t: Any, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """t with a new axis of length 1 at this place; `expand_dims` is the same."""
    return _tensors(t)[0].unsqueeze(axis, dim=dim)


expand_dims = unsqueeze


def split(
    t: Any, sizes: int | Sequence[int], axis: int | None = None, *, dim: int | None = None
) -> tuple[Tensor, ...]:
    """Parts of t of these lengths along `axis`, the first by default; one number: of each part."""
    return _tensors(t)[0].split(sizes, axis, dim=dim)


def swapaxes(t: Tensor, a: int, b: int) -> Tensor:
    """t with two axes exchanged."""
    order = list(range(t.ndim))
    i, j = shape.axis_within(a, t.ndim), shape.axis_within(b, t.ndim)
    order[i], order[j] = j, i
    return t.transpose(*order)
