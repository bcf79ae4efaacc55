"""Place: the path of a tensor in the whole model, its whole shape and the part on this rank.

A rank draws initial values for its part alone, from the path and the indices in the whole tensor,
and loads its part of a whole tensor. Ranks exchange their places once (`PartTable`). Files, the
digest, `--verify`, the comparison of ranks and the norm of the gradient are computed from that
table.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np

Part: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) along each axis of the whole tensor."""


class Place(NamedTuple):
    """The position of a rank's part of a tensor in the whole model.

    Everything that must not depend on the layout is derived from it: initial values, names in
    files, the digest, comparisons, and which rank counts an element in the norm of the gradient.
    Ranks with equal places have copies.

    path    the name in the state dict of the whole model, also on a rank with only a stage of it
    shape   the shape of the whole tensor
    part    the part that this rank owns
    """

    path: str
    shape: tuple[int, ...]
    part: Part

    @classmethod
    def of_whole(cls, path: str, shape: tuple[int, ...]) -> "Place":
        """Returns the place of a tensor that this rank owns completely."""
        return cls(path, tuple(shape), whole(shape))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(stop - start for start, stop in self.part)

    @property
    def size(self) -> int:
        """The number of elements of the part."""
        return math.prod(self.local_shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part as an index into the whole tensor."""
        return tuple(slice(start, stop) for start, stop in self.part)

    def range(self, lo: int = 0, hi: int | None = None) -> "Range":
        """Returns the range of elements lo..hi-1 of the part; by default all of them."""
        return Range(self.path, self.part, lo, self.size if hi is None else hi)

    def check(self) -> None:
        """Raises ValueError unless the part lies within the tensor."""
        inside = all(0 <= a <= b <= n for (a, b), n in zip(self.part, self.shape, strict=False))
        if len(self.part) != len(self.shape) or not inside:
            raise ValueError(
                f"{self.path or 'place'}: the part {self.part} does not lie within a tensor of "
                f"shape {self.shape}; give one (start, stop) for each axis, and sizes of at least 0"
            )

    def indices(self) -> np.ndarray:
        """Returns the C-order index in the whole tensor of each element of the part, in C order."""
        index = np.zeros((), np.int64)
        for n, (start, stop) in zip(self.shape, self.part, strict=True):
            index = index[..., None] * n + np.arange(start, stop)
        return index.reshape(-1)


def whole(shape: tuple[int, ...]) -> Part:
    """Returns the part that covers a whole tensor of this shape."""
    return tuple((0, n) for n in shape)


class Range(NamedTuple):
    """Elements lo..hi-1 of a box of a tensor, counted in the order of memory.

    Ranges describe the elements of a tensor that a rank updates, owns or needs, that a move copies,
    and that a file holds.

    tensor   the path of the tensor in the whole model
    """

    tensor: str
    box: Part
    lo: int
    hi: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.hi - self.lo
