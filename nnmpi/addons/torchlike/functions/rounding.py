"""Functions of tensors that round, and the sign, with gradients of 0; they are methods too."""

from typing import Any

from nnmpi.addons.torchlike.ops import rounding
from nnmpi.autograd.functional import as_tensors
from nnmpi.autograd.tensor import Tensor, apply


def sign(t: Any) -> Tensor:
    """-1, 0 or 1, as the elements are below, equal to or above 0."""
    return apply(rounding.sign, *as_tensors(t))


def floor(t: Any) -> Tensor:
    """The largest integers that are not above the elements."""
    return apply(rounding.floor, *as_tensors(t))


def ceil(t: Any) -> Tensor:
    """The smallest integers that are not below the elements."""
    return apply(rounding.ceil, *as_tensors(t))


def trunc(t: Any) -> Tensor:
    """The integer parts of the elements."""
    return apply(rounding.trunc, *as_tensors(t))


def round(t: Any, *, decimals: int = 0) -> Tensor:
    """The nearest integers, or the nearest numbers with so many decimals; halves go to even."""
    (t,) = as_tensors(t)
    if not decimals:
        return apply(rounding.rint, t)
    return apply(rounding.rint, t * 10.0**decimals) / 10.0**decimals
