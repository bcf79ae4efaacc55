"""Place: the path of a tensor in the whole model, its whole shape and the part on this rank.

Initial values are drawn for the part alone, from the path and the indices in the whole tensor.
Loading takes the part from the whole tensor. Ranks exchange their places once (`PartTable`); files,
the digest, `--verify`, the comparison of ranks and the norm of the gradient are computed from that
table.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np

Part: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) along each axis of the whole tensor."""


class Place(NamedTuple):
    """Everything that does not depend on the layout is derived from it: initial values, names in
    files, the digest, comparisons, and which rank counts a number in the norm of the gradient.
    Ranks with equal places have copies.

    path    name in the state dict of the whole model, never of a stage
    shape   of the whole tensor
    part    what this rank has of it
    """

    path: str
    shape: tuple[int, ...]
    part: Part

    @classmethod
    def of_whole(cls, path: str, shape: tuple[int, ...]) -> "Place":
        """The place of a tensor that this rank has whole."""
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
        """Numbers lo to hi - 1 of the part; by default all."""
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
        """The C-order index in the whole tensor of each element of the part, in C order."""
        index = np.zeros((), np.int64)
        for n, (start, stop) in zip(self.shape, self.part, strict=True):
            index = index[..., None] * n + np.arange(start, stop)
        return index.reshape(-1)


def whole(shape: tuple[int, ...]) -> Part:
    """The part that is the whole tensor."""
    return tuple((0, n) for n in shape)


class Range(NamedTuple):
    """Numbers lo to hi - 1 of a box of a tensor, in the order of memory.

    It says what of a tensor a rank updates, has or needs, what a move copies and what a file holds.

    tensor   the path of the tensor in the whole model
    """

    tensor: str
    box: Part
    lo: int
    hi: int

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.hi - self.lo
