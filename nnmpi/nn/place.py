"""Place: where a parameter or a buffer stands in the whole model, and which part of it is here."""

from typing import NamedTuple, TypeAlias

import numpy as np

Part: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) along each axis of the whole tensor."""

REPLICATED = ("dp", "tp")
"""The mesh axes over which an ordinary layer's tensors are copies; a pipeline stage has its own."""


class Place(NamedTuple):
    """Everything that does not depend on the layout is derived from it: initial values, names in
    files, the digest, comparisons, and which rank counts a number in the norm of the gradient.

    path    name in the state dict of the whole model, never of a stage
    shape   of the whole tensor
    part    what this rank owns of it
    copies  mesh axes along which all ranks own the same part
    """

    path: str
    shape: tuple[int, ...]
    part: Part
    copies: tuple[str, ...] = REPLICATED

    @classmethod
    def of_whole(cls, path: str, shape: tuple[int, ...]) -> "Place":
        """A tensor that is not cut."""
        return cls(path, tuple(shape), whole(shape))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(stop - start for start, stop in self.part)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part as an index into the whole tensor."""
        return tuple(slice(start, stop) for start, stop in self.part)

    def indices(self) -> np.ndarray:
        """The index of each element of the part in the whole tensor; both in C order."""
        index = np.zeros((), np.int64)
        for n, (start, stop) in zip(self.shape, self.part, strict=True):
            index = index[..., None] * n + np.arange(start, stop)
        return index.reshape(-1)


def whole(shape: tuple[int, ...]) -> Part:
    """The part that is everything."""
    return tuple((0, n) for n in shape)
