"""Differentiable functions of tensors, under their names in NumPy and PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.autograd.arguments import axis_of, flat, one_of
from nnmpi.autograd.ops import activations, elementwise, logic, resample, shape
from nnmpi.autograd.ops import einsum as einsum_op
from nnmpi.autograd.ops import softmax as softmax_op
from nnmpi.autograd.ops.activations import gelu_form
from nnmpi.autograd.ops.reduce import Dims
from nnmpi.autograd.tensor import Tensor, apply, array_on, as_tensor
from nnmpi.backend import CPU, Backend
from nnmpi.kernels import Result


def tensor(
    value: Any,
    dtype: Any = None,
    *,
    requires_grad: bool = False,
    on: Backend | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor with a copy of `value`: an array, a tensor, a number or nested lists of numbers.

    Arrays keep their type; Python floats become float32. `on` is a backend, `device` its name.
    """
    if isinstance(value, Tensor):
        value = value.data
    if dtype is None and not hasattr(value, "dtype"):
        dtype = np.float32 if np.asarray(value).dtype.kind == "f" else None
    where = _backend(on, device)
    return Tensor(where.xp.array(array_on(where, value, dtype)), requires_grad)


def _backend(on: Backend | None, device: str | None) -> Backend:
    """The backend that is given, or named; the CPU by default."""
    found: Backend = one_of("on", on, "device", device and backend.get(device)) or CPU
    return found


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor in the memory of this array: writes to one are writes to the other."""
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"from_numpy takes a NumPy array, not a {type(array).__name__}: write nnmpi.tensor(x)"
        )
    return Tensor(array_on(CPU, array))


def as_tensors(*values: Any, others: tuple[Any, ...] = ()) -> list[Tensor]:
    """Each value as a tensor; constants go to the backend of the first tensor given."""
    on = next((backend.of(v.operand) for v in (*values, *others) if isinstance(v, Tensor)), None)
    return [as_tensor(v, on) for v in values]


def _unary(op: Callable[..., Result]) -> Callable[[Any], Tensor]:
    def function(t: Any) -> Tensor:
        return apply(op, *as_tensors(t))

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
    return apply(gelu_form(approximate), *as_tensors(t))


def leaky_relu(t: Any, negative_slope: float = 0.01) -> Tensor:
    """t where it is positive, negative_slope * t elsewhere."""
    return apply(activations.leaky_relu, *as_tensors(t), slope=negative_slope)


def softmax(t: Any, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """exp(t) / sum(exp(t)) over `axis`, the last by default."""
    return apply(softmax_op.softmax, *as_tensors(t), axis=_axis(axis, dim, -1))


def log_softmax(t: Any, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """log(softmax(t)) over `axis`, the last by default, without overflow."""
    return apply(softmax_op.log_softmax, *as_tensors(t), axis=_axis(axis, dim, -1))


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
    return (a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else (*as_tensors(a), b)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the condition is true, b elsewhere."""
    return apply(elementwise.where, *as_tensors(condition, others=(a, b)), a, b)


def clip(t: Any, low: float | None = None, high: float | None = None) -> Tensor:
    """t limited to [low, high]."""
    return apply(elementwise.clip, *as_tensors(t), low=low, high=high)


def concatenate(
    tensors: Sequence[Any], axis: int | None = None, *, dim: int | None = None
) -> Tensor:
    """The tensors joined along an existing axis, the first by default."""
    ts = _at_least_one("concatenate", tensors)
    return apply(shape.concatenate, *ts, axis=_axis(axis, dim, 0))


cat = concatenate


def stack(tensors: Sequence[Any], axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """The tensors joined along a new axis, the first by default."""
    ts, k = _at_least_one("stack", tensors), _axis(axis, dim, 0)
    return concatenate([t.unsqueeze(k) for t in ts], axis=k)


def _at_least_one(name: str, tensors: Sequence[Any]) -> list[Tensor]:
    if not len(tensors):
        raise ValueError(f"{name}: needs at least one tensor, got none")
    return as_tensors(*tensors)


def broadcast_to(t: Any, shape_: tuple[int, ...]) -> Tensor:
    """t broadcast to a shape."""
    return apply(shape.broadcast_to, *as_tensors(t), shape=shape_)


def flatten(t: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """t with the axes from start_dim to end_dim as one; all of them by default."""
    return as_tensors(t)[0].flatten(start_dim, end_dim)


def squeeze(t: Any, axis: Dims = None, *, dim: Dims = None) -> Tensor:
    """t without the axes of length 1: all of these, or those in `axis` that have it."""
    return as_tensors(t)[0].squeeze(axis, dim=dim)


def unsqueeze(t: Any, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """t with a new axis of length 1 at this place; `expand_dims` is the same."""
    return as_tensors(t)[0].unsqueeze(axis, dim=dim)


expand_dims = unsqueeze


def split(
    t: Any, sizes: int | Sequence[int], axis: int | None = None, *, dim: int | None = None
) -> tuple[Tensor, ...]:
    """Parts of t of these lengths along `axis`, the first by default; one number: of each part."""
    return as_tensors(t)[0].split(sizes, axis, dim=dim)


def argmax(
    t: Any,
    axis: int | None = None,
    keepdims: bool | None = None,
    *,
    dim: int | None = None,
    keepdim: bool | None = None,
) -> Tensor:
    """The place of the largest element along `axis`, or in C order; of equal ones the first."""
    return as_tensors(t)[0].argmax(axis, keepdims, dim=dim, keepdim=keepdim)


def swapaxes(t: Tensor, a: int, b: int) -> Tensor:
    """t with two axes exchanged."""
    order = list(range(t.ndim))
    i, j = shape.axis_within(a, t.ndim), shape.axis_within(b, t.ndim)
    order[i], order[j] = j, i
    return t.transpose(tuple(order))


def cumsum(t: Any, axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """The sums of the elements up to each place along `axis`; without one, in C order."""
    return as_tensors(t)[0].cumsum(axis, dim=dim)


class Ordered(NamedTuple):
    """Elements of a tensor in some order along an axis, and where they are in it."""

    values: Tensor
    indices: Tensor


def sort(
    t: Any,
    axis: int | None = None,
    descending: bool = False,
    *,
    dim: int | None = None,
    stable: bool = True,
) -> Ordered:
    """The elements in ascending order along `axis`, the last by default; equal ones in theirs."""
    return _ordered(t, _axis(axis, dim, -1), descending, None)


def topk(
    t: Any,
    k: int,
    axis: int | None = None,
    largest: bool = True,
    sorted: bool = True,
    *,
    dim: int | None = None,
) -> Ordered:
    """The k largest or smallest elements along `axis`, the last by default, in order."""
    return _ordered(t, _axis(axis, dim, -1), largest, k)


def _ordered(t: Any, axis: int, descending: bool, k: int | None) -> Ordered:
    (t,) = as_tensors(t)
    rows = t if t.ndim else t.reshape(1)
    at = shape.axis_within(axis, rows.ndim)
    n = rows.shape[at]
    if k is not None and not 0 <= k <= n:
        raise ValueError(f"topk: k={k} of the {n} elements along axis {axis} of shape {t.shape}")
    order = apply(logic.argsort, rows, axis=at, descending=descending)
    if k is not None:
        order = order[(slice(None),) * at + (slice(k),)]
    values = apply(shape.take_along_axis, rows, order, axis=at)
    return Ordered(values, order) if t.ndim else Ordered(values.reshape(()), order.reshape(()))


def pad(t: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """t with more elements at the ends: pad is (before, after) of the last axis, then of the one
    before it, and so on; less than 0 cuts off.

    `mode`: "constant", or the elements that t has: "reflect", "replicate", "circular".
    """
    (t,), widths = as_tensors(t), [*map(int, pad)]
    if len(widths) % 2 or len(widths) > 2 * t.ndim:
        raise ValueError(
            f"pad: {tuple(widths)} for a tensor of {t.ndim} axes: give two numbers for each axis, "
            "from the last one on"
        )
    if mode != "constant" and value is not None:
        raise ValueError(f"pad: value={value} with mode {mode!r}, which takes elements of t")
    ends = [(0, 0)] * (t.ndim - len(widths) // 2)
    ends += reversed([*zip(widths[::2], widths[1::2], strict=True)])
    return apply(resample.pad, t, widths=ends, mode=mode, value=0 if value is None else value)


def einsum(equation: str, *tensors: Any) -> Tensor:
    """The sum of products that letters tell, as in einsum("bij,bjk->bik", a, b)."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    if not isinstance(equation, str):
        raise TypeError('einsum: write the letters first, as in einsum("ij,jk->ik", a, b)')
    return apply(einsum_op.einsum, *_at_least_one("einsum", given), equation=equation)


def zeros(
    *sizes: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    on: Backend | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor of zeros: zeros(2, 3) or zeros((2, 3))."""
    xp = _backend(on, device).xp
    return Tensor(xp.zeros(flat(sizes), dtype or np.float32), requires_grad)


def ones(
    *sizes: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    on: Backend | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor of ones: ones(2, 3) or ones((2, 3))."""
    xp = _backend(on, device).xp
    return Tensor(xp.ones(flat(sizes), dtype or np.float32), requires_grad)


def full(
    size: int | Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    on: Backend | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor of this size and value, in the type that `tensor` gives the value."""
    value, xp = tensor(fill_value, dtype), _backend(on, device).xp
    return Tensor(xp.full(flat((size,)), value.item(), value.dtype), requires_grad)
