"""The base class of tensors: methods that apply no op.

Methods mean what PyTorch's do. Those that take an axis accept NumPy's names (axis, keepdims) as
well as PyTorch's (dim, keepdim); where the libraries differ, NumPy's `axis` gives NumPy's result.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd import numpy_functions
from nnmpi.autograd.arguments import ElementCount, axis_of
from nnmpi.autograd.ops import reduce, shape
from nnmpi.autograd.recording import Storage, recording


class TensorBase:
    """The base of Tensor: its array and shape, conversions to Python and NumPy, and methods that
    are built on `reshape`, `transpose` and indexing."""

    __slots__ = ("_array", "_requires_grad", "storage")

    applied: Callable[..., Self]
    """`tensor.apply`: runs an op on arrays, and returns a tensor."""

    _array: Array
    """The array that ops read; unlike `array`, it may be valid only until the next op."""

    array: Array
    _requires_grad: bool
    """`requires_grad` at the last use: a write to shared memory may have changed it."""
    renew: Callable[[], None]
    viewed: Any
    is_refreshed = False
    """True if `refresh` does anything: then nodes hold the tensor even if it gets no gradient."""
    storage: Storage
    shape: Any
    reshape: Callable[..., Self]
    transpose: Callable[..., Self]
    __getitem__: Callable[..., Self]

    @property
    def requires_grad(self) -> bool:
        """True if backward passes compute the gradient of this tensor."""
        if (sharing := self.storage.sharing) and sharing.renewed and not sharing.outdated:
            self.renew()
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._requires_grad = value

    @property
    def size(self) -> ElementCount:
        """The number of elements; t.size() is the shape, and t.size(0) the length of an axis."""
        return ElementCount(self.shape)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({np.array2string(self.numpy(), separator=', ', prefix='tensor(')}{grad})"

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        """The only element of an integer tensor, so that the tensor can index a list."""
        return operator.index(self.item())

    def item(self) -> Any:
        """The only element as a Python number; waits for the device."""
        if (value := self.array).size != 1:
            raise ValueError(
                f"a tensor of shape {tuple(value.shape)} has {value.size:,} elements, and only one "
                "element can become a Python number: use tolist() or numpy() for all"
            )
        return backend.to_host(value).item()

    def __dlpack__(self, **options: Any) -> Any:
        """The memory of the tensor, for `from_dlpack` of another library."""
        array = self.array
        if self.requires_grad:
            raise BufferError(
                "another library would not know of the gradient of this tensor: share t.detach()"
            )
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array, which on the CPU shares the tensor's memory."""
        return self.storage.to_numpy(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values, for np.asarray(tensor); raises TypeError if a gradient would be lost."""
        self.renew()
        if self.requires_grad and recording.get():
            raise TypeError(numpy_functions.refusal("numpy.asarray"))
        return np.array(self.numpy(), dtype, copy=copy)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """The result of a NumPy function; raises TypeError if a gradient would be lost."""
        return numpy_functions.evaluate(function, args, options, TensorBase)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """The result of a NumPy ufunc on the values, or of the operator in `array + tensor`."""
        return numpy_functions.evaluate_ufunc(ufunc, method, inputs, options, TensorBase)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec or not self.shape else repr(self)

    def view(self, *sizes: int | tuple[int, ...]) -> Self:
        """The elements in another shape, as by `reshape`, in the same memory: a write to the view
        changes this tensor, and the other way round.

        If the elements lie in another order in memory (images are channels-last), the view is a
        copy. Then, after a write to one of the two, using the other one raises RuntimeError.
        """
        return self.reshape(*sizes)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """A tensor with the axes from start_dim to end_dim merged into one; by default all axes."""
        return self.reshape(shape.flattened(self.shape, start_dim, end_dim))

    def ravel(self) -> Self:
        """A tensor with all axes merged into one."""
        return self.reshape(-1)

    def squeeze(self, axis: reduce.Dims = None, *, dim: reduce.Dims = None) -> Self:
        """A tensor without its axes of length 1: all of them, or only those listed in `axis`."""
        return self.reshape(shape.squeezed(self.shape, axis_of(axis, dim)))

    def unsqueeze(self, axis: int | None = None, *, dim: int | None = None) -> Self:
        """A tensor with a new axis of length 1 at position `axis`."""
        return self.reshape(shape.unsqueezed(self.shape, axis_of(axis, dim)))

    def split(
        self, sizes: int | Sequence[int], axis: int | None = None, *, dim: int | None = None
    ) -> tuple[Self, ...]:
        """Views of consecutive parts along `axis` (default 0): a list gives the length of each
        part, an integer the length of all parts, of which the last may be shorter.

        This is PyTorch's split; NumPy's takes the number of parts, or the places to cut at.
        """
        return tuple(self[index] for index in shape.split(self.shape, sizes, axis_of(axis, dim)))

    def numel(self) -> int:
        """The number of elements."""
        return int(self.size)

    @property
    def T(self) -> Self:
        """The tensor with its axes reversed."""
        return self.transpose()


class Chosen(NamedTuple):
    """The result of max, min, sort, topk, kthvalue, median or mode along an axis: the chosen
    elements, and their indices along that axis."""

    values: Any
    indices: Any
