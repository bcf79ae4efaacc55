"""Tensor functions that are short formulas of others, under PyTorch's names."""

from typing import Any

from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd.arguments import axis_of, keeps_axes
from nnmpi.autograd.functional import as_tensors, where
from nnmpi.autograd.tensor import Tensor


def square(t: Any) -> Tensor:
    """t ** 2, which is int64 for booleans."""
    (t,) = as_tensors(t)
    result: Tensor = t**2
    return result


def reciprocal(t: Any) -> Tensor:
    """1 / t."""
    (t,) = as_tensors(t)
    result: Tensor = 1 / t
    return result


def rsqrt(t: Any) -> Tensor:
    """1 / sqrt(t)."""
    (t,) = as_tensors(t)
    result: Tensor = 1 / t.sqrt()
    return result


def logsumexp(
    t: Any, dim: Any = None, keepdim: bool | None = None, *, axis: Any = None, keepdims: Any = None
) -> Tensor:
    """log(sum(exp(t))) over axes, computed without overflow; -inf where all elements are -inf."""
    (t,) = as_tensors(t)
    t = t if is_float(t.dtype) else t.float()
    over, keeps = axis_of(axis, dim), keeps_axes(keepdims, keepdim)
    largest = t.detach().amax(axis=over, keepdims=True)
    finite = where(largest.isfinite(), largest, 0)  # inf - inf is NaN
    y: Tensor = (t - finite).exp().sum(axis=over, keepdims=True).log() + finite
    return y if keeps else y.sum(axis=over)


def logical_and(a: Any, b: Any) -> Tensor:
    """True where both elements are not 0."""
    return _truths(a) & _truths(b)


def logical_or(a: Any, b: Any) -> Tensor:
    """True where one or both elements are not 0."""
    return _truths(a) | _truths(b)


def logical_xor(a: Any, b: Any) -> Tensor:
    """True where exactly one of the two elements is not 0."""
    return _truths(a) ^ _truths(b)


def logical_not(t: Any) -> Tensor:
    """True where an element is 0."""
    (t,) = as_tensors(t)
    result: Tensor = t == 0
    return result


def _truths(t: Any) -> Tensor:
    (t,) = as_tensors(t)
    truths: Tensor = t != 0
    return truths
