"""Methods that make new tensors with the type and device of another, as t.new_zeros(3)."""

from typing import Any

from nnmpi.autograd import creation, functional
from nnmpi.autograd.arguments import sizes_of
from nnmpi.autograd.tensor import Tensor


def new_full(
    t: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of the given size, filled with one value."""
    options: dict[str, Any] = {"dtype": dtype or t.dtype, "device": device or t.device}
    return creation.full(size, fill_value, requires_grad=requires_grad, **options)


def new_zeros(t: Tensor, *sizes: Any, size: Any = None, **options: Any) -> Tensor:
    """Zeros: t.new_zeros(2, 3) or t.new_zeros((2, 3)), with the options of `new_full`."""
    return new_full(t, sizes_of(sizes, size), 0, **options)


def new_ones(t: Tensor, *sizes: Any, size: Any = None, **options: Any) -> Tensor:
    """A tensor of ones: t.new_ones(2, 3) or t.new_ones((2, 3)), with the options of `new_full`."""
    return new_full(t, sizes_of(sizes, size), 1, **options)


new_empty = new_zeros


def new_tensor(
    t: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor with a copy of the data, by default in the type and on the device of t."""
    where: dict[str, Any] = {"device": device or t.device, "requires_grad": requires_grad}
    return functional.tensor(data, dtype or t.dtype, **where)
