"""Functions that make tensors from sizes and numbers, under PyTorch's names."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.autograd.arguments import flat, sizes_of
from nnmpi.autograd.functional import backend_of, tensor
from nnmpi.autograd.tensor import Tensor, array_on

__all__ = [
    "arange", "as_tensor", "asarray", "empty", "empty_like", "eye", "full", "full_like",
    "linspace", "ones", "ones_like", "zeros", "zeros_like",
]  # fmt: skip


def creator(values: Callable[..., Array]) -> Callable[..., Tensor]:
    """Makes a PyTorch-like tensor constructor from `values`, which returns a NumPy array; it takes
    dtype (default: float32 for floats, int64 for integers), requires_grad and device too."""

    @wraps(values)
    def function(
        *args: Any,
        dtype: Any = None,
        requires_grad: bool = False,
        on: Backend | None = None,
        device: str | Backend | None = None,
        **named: Any,
    ) -> Tensor:
        array = values(*args, **named)
        type_code = array.dtype.kind
        default = np.float32 if type_code == "f" else np.int64 if type_code in "iu" else None
        y = Tensor(backend_of(on, device).asarray(array, dtype or default), requires_grad)
        # PyTorch rounds the arguments then, and not these values
        if type_code == "f" and y.dtype.kind in "iu" and (broken := array[array % 1 != 0]).size:
            raise ValueError(
                f"{values.__name__}: {broken[0]:g} is no {y.dtype}: give whole numbers, or leave "
                "out dtype and convert the result"
            )
        return y

    return function


def like(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes the `..._like` variant of a constructor, with shape, dtype and device of a tensor."""

    def function(
        t: Tensor,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        memory_format: Any = None,
    ) -> Tensor:
        options = {"dtype": dtype or t.dtype, "requires_grad": requires_grad}
        return make(t.shape, *args, device=device or t.device, **options)

    function.__name__ = function.__qualname__ = f"{make.__name__}_like"
    function.__module__ = make.__module__  # pickle looks it up there
    function.__doc__ = f"`{make.__name__}` in the shape, type and device of t."
    return function


def zeros(*sizes: Any, size: Any = None, **options: Any) -> Tensor:
    """A tensor of zeros: zeros(2, 3) or zeros((2, 3)), with the options of `full`."""
    return full(sizes_of(sizes, size), 0.0, **options)


def ones(*sizes: Any, size: Any = None, **options: Any) -> Tensor:
    """A tensor of ones: ones(2, 3) or ones((2, 3)), with the options of `full`."""
    return full(sizes_of(sizes, size), 1.0, **options)


empty = zeros


def full(
    size: int | Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    on: Backend | None = None,
    device: str | Backend | None = None,
) -> Tensor:
    """A tensor of the given size, filled with `fill_value`, in the dtype that `tensor` gives this
    value unless `dtype` is given. `on` is another name of `device`."""
    value, xp = tensor(fill_value, dtype), backend_of(on, device).xp
    return Tensor(xp.full(flat((size,)), value.item(), value.dtype), requires_grad)


zeros_like = empty_like = like(zeros)
ones_like = like(ones)
full_like = like(full)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a tensor: itself if it is one, a tensor that shares the memory of an array, or a
    copy, as by `tensor`, of numbers and lists. Another dtype or device always means a copy."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if backend.is_array(data):
        t = Tensor(array_on(backend.of(data), data))
        t.storage.sharing_record()  # to the owner of the array
        return t.to(dtype=dtype, device=device)
    return tensor(data, dtype, device=device)


asarray = as_tensor


@creator
def arange(start: Any, end: Any = None, step: Any = 1) -> Array:
    """The values start, start + step, ... before end; arange(end) begins at 0 (int64)."""
    return np.arange(0 if end is None else start, start if end is None else end, step)


@creator
def linspace(start: float, end: float, steps: int) -> Array:
    """`steps` equally spaced values from start to end, both included."""
    return np.linspace(start, end, steps)


@creator
def eye(n: int, m: int | None = None) -> Array:
    """A matrix with 1 on the diagonal and 0 elsewhere."""
    return np.eye(n, m)
