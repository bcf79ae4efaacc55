"""Differentiable functions of tensors, under their names in NumPy and PyTorch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from nnmpi.addons import finder
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.autograd.arguments import axis_of, one_of
from nnmpi.autograd.ops import activations, elementwise, resample, shape
from nnmpi.autograd.ops.activations import gelu_form
from nnmpi.autograd.recording import op_types
from nnmpi.autograd.tensor import Tensor, apply, array_on, as_tensor
from nnmpi.autograd.torch_names import NAMES

__all__ = [
    "broadcast_to", "cat", "concatenate", "from_dlpack", "from_numpy", "gelu",
    "leaky_relu", "maximum", "minimum", "pad", "silu", "stack", "tensor", "where",
]  # fmt: skip


def tensor(
    value: Any,
    dtype: Any = None,
    *,
    requires_grad: bool = False,
    on: Backend | None = None,
    device: str | Backend | None = None,
) -> Tensor:
    """A tensor with a copy of `value`: an array, a tensor, a number or nested lists of numbers.

    Arrays keep their dtype; Python floats become float32. `on` is another name of `device`.
    """
    if isinstance(value, Tensor):
        value = value.array
    if dtype is None and not hasattr(value, "dtype"):
        dtype = np.float32 if np.asarray(value).dtype.kind == "f" else None
    where = backend_of(on, device)
    return Tensor(array_on(where, value, dtype).copy(order="K"), requires_grad)


def backend_of(on: Backend | None, device: str | Backend | None) -> Backend:
    """The backend given as `on` or `device`, as an object or by name; the CPU by default."""
    return backend.get(one_of("on", on, "device", device) or CPU)


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor that shares the memory of a NumPy array: a write to one changes the other."""
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"from_numpy takes a NumPy array, not a {type(array).__name__}: write nnmpi.tensor(x)"
        )
    t = Tensor(array_on(CPU, array))
    t.storage.sharing_record()  # to the owner of the array
    return t


def from_dlpack(value: Any) -> Tensor:
    """A tensor in the memory of an array of another library (PyTorch, JAX, CuPy), on its device: a
    write to one changes the other. Memory of JAX is read-only. Raises TypeError where memory cannot
    be shared."""
    return Tensor(value.data if isinstance(value, Tensor) else backend.from_dlpack(value))


def as_tensors(*values: Any, others: tuple[Any, ...] = ()) -> list[Tensor]:
    """Returns the values as tensors; numbers and arrays become constants on the first tensor's
    backend."""
    on = next((backend.of(v._array) for v in (*values, *others) if isinstance(v, Tensor)), None)
    return [as_tensor(v, on) for v in values]


def wide(value: Any) -> Tensor:
    """Returns the value as a tensor, for a function of several ops that is too inaccurate in 16
    bits: within `autocast`, a 16-bit value is converted to float32."""
    return as_tensor(value) if (types := op_types.get()) is None else types.wide(as_tensor(value))


def silu(t: Any) -> Tensor:
    """t * sigmoid(t)."""
    return apply(activations.silu, *as_tensors(t))


def gelu(t: Any, *, approximate: str = "none") -> Tensor:
    """t * Phi(t), with Phi the normal distribution function; or its form with tanh."""
    return apply(gelu_form(approximate), *as_tensors(t))


def leaky_relu(t: Any, negative_slope: float = 0.01) -> Tensor:
    """t where t > 0, and negative_slope * t elsewhere."""
    return apply(activations.leaky_relu, *as_tensors(t), slope=negative_slope)


def maximum(a: Any, b: Any) -> Tensor:
    """The elementwise maximum of a and b."""
    return apply(elementwise.maximum, *_pair(a, b))


def minimum(a: Any, b: Any) -> Tensor:
    """The elementwise minimum of a and b."""
    return apply(elementwise.minimum, *_pair(a, b))


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """a and b, one of them made a tensor; the other may stay a number, which promotes no dtype."""
    return (a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else (*as_tensors(a), b)


@overload
def where(condition: Any) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Any, a: Any, b: Any) -> Tensor: ...
def where(condition: Any, a: Any = None, b: Any = None) -> Any:
    """The elements of a where the condition is true, and those of b elsewhere; float32 or int64 if
    both are Python numbers. Without a and b: the indices where it is true, as by `nonzero`."""
    if a is None and b is None:
        return NAMES.needed("nonzero")(condition, as_tuple=True)
    if isinstance(a, int | float) and isinstance(b, int | float):
        a, b = tensor([a, b])
    return apply(elementwise.where, *as_tensors(condition, others=(a, b)), a, b)


def concatenate(
    tensors: Sequence[Any], axis: int | None = None, *, dim: int | None = None
) -> Tensor:
    """The tensors joined along an existing axis, by default axis 0."""
    ts = at_least_one("concatenate", tensors)
    return apply(shape.concatenate, *ts, axis=axis_of(axis, dim, 0))


cat = concatenate


def stack(tensors: Sequence[Any], axis: int | None = None, *, dim: int | None = None) -> Tensor:
    """The tensors joined along a new axis, by default axis 0."""
    ts, k = at_least_one("stack", tensors), axis_of(axis, dim, 0)
    if len({tuple(t.shape) for t in ts}) > 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in ts)
        raise ValueError(f"stack: shapes {shapes}: give tensors of one shape; cat joins others")
    return concatenate([t.unsqueeze(k) for t in ts], axis=k)


def at_least_one(name: str, tensors: Sequence[Any]) -> list[Tensor]:
    """The tensors; raises ValueError if there are none."""
    if not len(tensors):
        raise ValueError(f"{name}: needs at least one tensor, got none")
    return as_tensors(*tensors)


def broadcast_to(t: Any, shape_: tuple[int, ...]) -> Tensor:
    """t broadcast to the shape `shape_`."""
    return apply(shape.broadcast_to, *as_tensors(t), shape=shape_)


def pad(t: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """t with elements added at its ends: `pad` is (before, after) for the last axis, then for the
    one before it, and so on; negative widths cut elements off.

    `mode`: "constant" fills with `value`; other modes repeat elements: "reflect", "replicate",
    "circular".
    """
    (t,), widths = as_tensors(t), [*map(int, pad)]
    if len(widths) % 2 or len(widths) > 2 * t.ndim:
        raise ValueError(
            f"pad: {tuple(widths)} for a tensor with {t.ndim} axes: give two numbers for each "
            "axis, beginning with the last one"
        )
    if mode != "constant" and value is not None:
        raise ValueError(f"pad: mode {mode!r} repeats elements of t: leave out value={value}")
    ends = [(0, 0)] * (t.ndim - len(widths) // 2)
    ends += reversed([*zip(widths[::2], widths[1::2], strict=True)])
    return apply(resample.pad, t, widths=ends, mode=mode, value=0 if value is None else value)


if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.autograd.functional", "autograd.functional")
