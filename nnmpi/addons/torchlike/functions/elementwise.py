"""Less frequent functions of elements, and cumulative products, under PyTorch's names."""

from typing import Any

from nnmpi.addons.torchlike.ops import more_elementwise as ops
from nnmpi.autograd.arguments import axis_of
from nnmpi.autograd.functional import as_tensors, where
from nnmpi.autograd.tensor import Tensor, apply


def atan(t: Any) -> Tensor:
    """The arc tangents of the elements."""
    return apply(ops.atan, *as_tensors(t))


def log2(t: Any) -> Tensor:
    """The logarithms of the elements to base 2."""
    return apply(ops.log2, *as_tensors(t))


def nan_to_num(
    t: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """The elements with NaN replaced by `nan` or 0, and infinities by `posinf` and `neginf`, or the
    largest and the smallest number of the type."""
    return apply(ops.nan_to_num, *as_tensors(t), nan=nan, posinf=posinf, neginf=neginf)


def lerp(t: Any, end: Any, weight: Any) -> Tensor:
    """t + weight * (end - t), computed from the nearer end, so that a weight of 1 gives `end`."""
    t, end = as_tensors(t, end)
    from_start, from_end = t + weight * (end - t), end - (1 - weight) * (end - t)
    if isinstance(weight, Tensor):
        return where(abs(weight) < 0.5, from_start, from_end)
    nearer: Tensor = from_start if abs(weight) < 0.5 else from_end
    return nearer


def addcmul(t: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """t + value * tensor1 * tensor2."""
    t, tensor1, tensor2 = as_tensors(t, tensor1, tensor2)
    result: Tensor = t + value * tensor1 * tensor2
    return result


def addcdiv(t: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """t + value * tensor1 / tensor2."""
    t, tensor1, tensor2 = as_tensors(t, tensor1, tensor2)
    result: Tensor = t + value * tensor1 / tensor2
    return result


def div(t: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """t / other; rounding_mode "floor" rounds down, "trunc" towards 0, both without gradients."""
    t, other = (t, other) if isinstance(t, Tensor) else as_tensors(t, other)
    if rounding_mode is None:
        quotient: Tensor = t / other
        return quotient
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(f"div: rounding_mode={rounding_mode!r} must be 'floor', 'trunc' or None")
    return apply(ops.rounded_quotient, t, other, to_floor=rounding_mode == "floor")


def cumprod(
    t: Any, dim: int | None = None, *, dtype: Any = None, axis: int | None = None
) -> Tensor:
    """The cumulative product along an axis, computed in `dtype` if it is given."""
    (t,) = as_tensors(t)
    typed = t if dtype is None else t.to(dtype)
    y = apply(ops.cumprod, typed, axis=axis_of(axis, dim))
    return y if dtype is None else y.to(dtype)
