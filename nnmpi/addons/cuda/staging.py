"""Memory of a captured step for what changes from step to step: its arguments and the keys of its
random numbers. One copy brings all of it that comes from the host to the device."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.shapes import axis_order

ALIGNMENT = 256
"""The bytes at whose multiples an array begins, as one that CuPy allocates."""

KEY_BYTES = 16


class Argument(NamedTuple):
    """The memory for an array among the arguments of a step.

    written     what a call copies its argument into
    on_device   what kernels read: the same array, if arguments come from the device
    """

    written: Array
    on_device: Array


class Staging:
    """Two blocks of memory of one size, on the host and on the device, and views of both.

    arguments   the memory of arguments like `arrays`, in the order of these
    """

    def __init__(self, xp: Any, arrays: Sequence[Array], keys: int) -> None:
        sizes = [a.nbytes if isinstance(a, np.ndarray) else 0 for a in arrays]
        starts = [*accumulate((-(-n // ALIGNMENT) * ALIGNMENT for n in sizes), initial=0)]
        self._used, size = starts[-1], starts[-1] + keys * KEY_BYTES
        self._host, self._device = np.zeros(size, np.uint8), xp.zeros(size, np.uint8)
        self._of_words = dict[int, tuple[Array, np.ndarray]]()
        self.arguments = [
            self._shared(a, start) if isinstance(a, np.ndarray) else _on_device(xp, a)
            for a, start in zip(arrays, starts, strict=False)
        ]

    def _shared(self, array: np.ndarray, start: int) -> Argument:
        """Returns memory for an argument from the host."""
        part = slice(start, start + array.nbytes)
        views = (_like(array, block[part]) for block in (self._host, self._device))
        return Argument(*views)

    def words(self, zeros: np.ndarray) -> Array:
        """Returns memory of the device for the words of a key, like `zeros`."""
        part = slice(self._used, self._used + KEY_BYTES)
        if part.stop > len(self._host):
            raise NumbersReadError("it draws more random numbers than on arrays without data")
        self._used = part.stop
        words, on_host = (block[part].view(zeros.dtype) for block in (self._device, self._host))
        self._of_words[id(words)] = words, on_host
        return words

    def on_host(self, words: Array) -> np.ndarray:
        """Returns what the host writes in place of words of the device."""
        return self._of_words[id(words)][1]

    def copy(self) -> None:
        """Copies the block of the host to the device, in the order of the current stream."""
        if len(self._host):
            self._device.set(self._host)


def _like(array: Array, memory: Array) -> Array:
    """Returns bytes as an array of the shape, dtype and order of axes of another."""
    order = axis_order(array)
    dense = memory.view(array.dtype).reshape([array.shape[axis] for axis in order])
    return dense.transpose([order.index(axis) for axis in range(len(order))])


def _on_device(xp: Any, array: Array) -> Argument:
    """Returns memory for an argument from the device."""
    memory = _like(array, xp.empty(array.nbytes, np.uint8))
    return Argument(memory, memory)
