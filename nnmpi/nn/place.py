"""Place: the path of a tensor in the whole model, its whole shape and the part on this rank.
StateArray: a range of elements of such a part, with the functions that read and write them. The
state of training is a list of StateArrays (`parallel/model/state.py`), on which files, the digest,
copies and comparisons are based."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays.dtypes import named

Box: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) along each axis of the whole tensor."""


class Place(NamedTuple):
    """The position of a rank's part of a tensor in the whole model.

    Whatever must not depend on how a model is divided among ranks is derived from the place:
    initial values, names in files, the digest, comparisons, and which rank counts an element in the
    norm of the gradient. Ranks with equal places have copies of the same part.

    path    the name in the state dict of the whole model, also on a rank with only a stage of it
    shape   the shape of the whole tensor
    part    the part that this rank owns: (start, stop) for each axis
    """

    path: str
    shape: tuple[int, ...]
    part: Box

    @classmethod
    def of_whole(cls, path: str, shape: tuple[int, ...]) -> "Place":
        """Returns the Place of a tensor that this rank owns completely."""
        return cls(path, tuple(shape), whole(shape))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part of the tensor that this rank owns."""
        return tuple(stop - start for start, stop in self.part)

    @property
    def size(self) -> int:
        """The number of elements of the part of the tensor that this rank owns."""
        return math.prod(self.local_shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part that this rank owns as an index into the whole tensor."""
        return tuple(slice(start, stop) for start, stop in self.part)

    def range(self, lo: int = 0, hi: int | None = None) -> "Range":
        """Returns elements lo..hi-1 of this rank's part, by default all, as a Range."""
        return Range(self.path, self.part, lo, self.size if hi is None else hi)

    def check(self) -> None:
        """Raises ValueError unless this rank's part lies within the tensor."""
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


def whole(shape: tuple[int, ...]) -> Box:
    """Returns the part that covers a whole tensor of this shape: (0, length) for each axis."""
    return tuple((0, n) for n in shape)


class Range(NamedTuple):
    """Elements lo..hi-1 of a rectangular part of a tensor, the `box`, in memory order: those that a
    rank updates, owns or needs, or that a file holds.

    tensor   the path of the tensor in the whole model
    box      (start, stop) for each axis
    """

    tensor: str
    box: Box
    lo: int
    hi: int

    @property
    def size(self) -> int:
        return self.hi - self.lo


class StateArray(NamedTuple):
    """Elements lo..hi-1 of this rank's part of an array of the training state, in memory order.

    axes        the order of the axes in memory
    dtype       the name of the type of its elements
    may_differ  True if copies on several ranks may differ, as those of buffers do
    read        read(a, b) returns elements a..b-1 of the part, with lo <= a <= b <= hi, on the
                host; None if this only describes the array, without elements
    write       copies all elements lo..hi-1 from an array on the host
    file        the file that has the elements, which all ranks can read; "": the memory of a rank
                has them
    """

    place: Place
    axes: tuple[int, ...]
    lo: int
    hi: int
    dtype: str
    may_differ: bool = False
    read: Callable[[int, int], np.ndarray] | None = None
    write: Callable[[np.ndarray], None] | None = None
    file: str = ""

    @property
    def name(self) -> str:
        """The name of the array, such as `fc.weight` or `fc.weight.momentum_buffer`."""
        return self.place.path

    @property
    def range(self) -> Range:
        """Elements lo..hi-1, with the tensor's name and this rank's part."""
        return self.place.range(self.lo, self.hi)

    @property
    def size(self) -> int:
        return self.hi - self.lo

    @property
    def nbytes(self) -> int:
        """The bytes of the elements that this rank has."""
        return self.size * int(named(self.dtype).itemsize)

    @property
    def is_whole(self) -> bool:
        """True if this rank has all elements of the whole array."""
        return self.place.part == whole(self.place.shape) and self.size == self.place.size

    def named(self, name: str) -> "StateArray":
        """Returns the array under another name."""
        return self._replace(place=self.place._replace(path=name))

    def as_whole(self) -> "StateArray":
        """Returns a description, without elements, of the whole array."""
        place = Place.of_whole(self.name, self.place.shape)
        return StateArray(place, self.axes, 0, place.size, self.dtype, self.may_differ)

    def on_paper(self) -> "StateArray":
        """Returns a description that cannot read or write elements, to be sent."""
        return self._replace(read=None, write=None)

    def elements(self) -> np.ndarray:
        """Returns the elements on the host: a view, where that is possible."""
        assert self.read is not None
        return self.read(self.lo, self.hi)

    def put(self, elements: np.ndarray) -> None:
        """Overwrites the elements with those of an array on the host."""
        assert self.write is not None
        self.write(elements)

    def holding(self, elements: np.ndarray) -> "StateArray":
        """Returns a StateArray of this range that reads from `elements`, without a copy."""
        return self._replace(read=partial(_between, elements, self.lo), write=None, file="")

    def copied(self) -> "StateArray":
        """Returns a StateArray of the same range that reads from a copy of the elements."""
        return self.holding(np.array(self.elements()))

    def part_of(self, whole_array: np.ndarray) -> np.ndarray:
        """Returns elements lo..hi-1 of this range from an array with the whole tensor."""
        part = whole_array[self.place.slices]
        return part.transpose(self.axes).reshape(-1)[self.lo : self.hi]


def _between(elements: np.ndarray, lo: int, a: int, b: int) -> np.ndarray:
    return elements[a - lo : b - lo]
