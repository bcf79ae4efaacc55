"""Methods of tensors that are made of `reshape` and of slices."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from nnmpi.autograd.arguments import axis_of
from nnmpi.autograd.ops import reduce, shape


class Shaped:
    """The part of a tensor that only knows its shape, and how to become another one."""

    __slots__ = ()

    shape: Any
    size: Any
    reshape: Callable[..., Self]
    transpose: Callable[..., Self]
    __getitem__: Callable[..., Self]

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
