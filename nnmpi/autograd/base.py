"""Methods of tensors that apply no op: values for Python and NumPy, shapes by `reshape`, slices."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd import replacements
from nnmpi.autograd.arguments import ElementCount, axis_of
from nnmpi.autograd.ops import reduce, shape
from nnmpi.autograd.recording import recording
from nnmpi.autograd.tape_node import Storage


class TensorBase:
    """The part of a tensor that has its array and its shape, and is made into others by methods."""

    __slots__ = ("operand", "requires_grad", "storage")

    operand: Array
    """The array that an op takes; unlike `data`, it may be valid until the next op only."""

    data: Array
    requires_grad: bool
    is_refreshed = False
    """Whether `refresh` does anything, so that nodes have to hold it without a gradient, too."""
    storage: Storage
    shape: Any
    reshape: Callable[..., Self]
    transpose: Callable[..., Self]
    __getitem__: Callable[..., Self]

    @property
    def size(self) -> ElementCount:
        """The number of elements; t.size() is the shape, t.size(0) the length of an axis."""
        return ElementCount(self.shape)

    def __len__(self) -> int:
        return len(self.operand)

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
        """The only element as an index of a list, if it is an integer."""
        return operator.index(self.item())

    def item(self) -> Any:
        """The only element as a Python number; waits for the device."""
        return backend.to_host(self.data).item()

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array, which shares memory on the CPU."""
        return backend.to_host(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values, for np.asarray(tensor); refused where a gradient would be lost."""
        if self.requires_grad and recording.get():
            raise TypeError(replacements.refusal("numpy.asarray"))
        return np.array(self.numpy(), dtype, copy=copy)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """NumPy's function of the values; refused where a gradient would be lost."""
        return replacements.evaluate(function, args, options, TensorBase)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def view(self, *sizes: int | tuple[int, ...]) -> Self:
        """The elements in another shape, as by `reshape`, and in the same memory for who writes.

        Where memory is in another order, as that of images is, writes to the view are refused.
        """
        y = self.reshape(*sizes)
        xp = backend.xp_of(self.operand)
        if y.size and not xp.may_share_memory(y.operand, self.operand):
            y.storage = Storage(is_copy=True)
        return y

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """A tensor with the axes from start_dim to end_dim as one; all of them by default."""
        return self.reshape(shape.flattened(self.shape, start_dim, end_dim))

    def squeeze(self, axis: reduce.Dims = None, *, dim: reduce.Dims = None) -> Self:
        """A tensor without the axes of length 1: all of these, or those in `axis` that have it."""
        return self.reshape(shape.squeezed(self.shape, axis_of(axis, dim)))

    def unsqueeze(self, axis: int | None = None, *, dim: int | None = None) -> Self:
        """A tensor with a new axis of length 1 at this place."""
        return self.reshape(shape.unsqueezed(self.shape, axis_of(axis, dim)))

    def split(
        self, sizes: int | Sequence[int], axis: int | None = None, *, dim: int | None = None
    ) -> tuple[Self, ...]:
        """Views of these lengths along `axis`, the first by default; a number is each one's length.

        The last may be shorter then. NumPy's split takes the number of parts, or where to cut.
        """
        return tuple(self[index] for index in shape.split(self.shape, sizes, axis_of(axis, dim)))

    def numel(self) -> int:
        """The number of elements."""
        return int(self.size)

    @property
    def T(self) -> Self:
        """The axes reversed."""
        return self.transpose()
