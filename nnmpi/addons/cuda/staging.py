"""Memory of a captured step for what changes from step to step: its arguments and the keys of its
random numbers. One copy brings all of it that comes from the host to the device."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta.shapes import axis_order

ALIGNMENT = 256
"""The bytes at whose multiples an array begins, as one that CuPy allocates."""

KEY_BYTES = 16
MORE_KEYS = 64
"""The number of keys for which there is room in each further block."""


class Argument(NamedTuple):
    """The memory for an array among the arguments of a step.

    written     what a call copies its argument into
    on_device   what kernels read: the same array, if arguments come from the device
    """

    written: Array
    on_device: Array


class Block(NamedTuple):
    """Two arrays of bytes: one of the host, and one of the device that is its copy."""

    on_host: np.ndarray
    on_device: Array


class Staging:
    """Blocks of memory for arguments and keys. They are not in the pool of a graph, whose kernels
    may write at other times what is free while it is captured.

    arguments   the memory of arguments like `arrays`, in the order of these
    keys        the number of keys for which there is room in the first block
    """

    def __init__(self, xp: Any, arrays: Sequence[Array], keys: int = MORE_KEYS) -> None:
        self._xp, self._pool = xp, xp.cuda.MemoryPool()
        self._blocks, self._of_words = list[Block](), dict[int, tuple[Array, np.ndarray]]()
        sizes = [a.nbytes if isinstance(a, np.ndarray) else 0 for a in arrays]
        starts = [*accumulate((-(-n // ALIGNMENT) * ALIGNMENT for n in sizes), initial=0)]
        self._add_block(starts[-1] + keys * KEY_BYTES)
        self._used = starts[-1]
        self.arguments = [
            self._shared(a, start) if isinstance(a, np.ndarray) else self._on_device(a)
            for a, start in zip(arrays, starts, strict=False)
        ]

    def _add_block(self, size: int) -> None:
        self._blocks.append(Block(np.zeros(size, np.uint8), self.new(size)))
        self._used = 0

    def new(self, size: int) -> Array:
        """Allocates bytes on the device."""
        with self._xp.cuda.using_allocator(self._pool.malloc):
            return self._xp.empty(size, np.uint8)

    def like(self, array: Array) -> Array:
        """Allocates an array of the device like another."""
        return _like(array, self.new(array.nbytes))

    def _shared(self, array: np.ndarray, start: int) -> Argument:
        """Returns memory for an argument from the host."""
        part = slice(start, start + array.nbytes)
        return Argument(*(_like(array, memory[part]) for memory in self._blocks[0]))

    def _on_device(self, array: Array) -> Argument:
        """Returns memory for an argument from the device."""
        memory = self.like(array)
        return Argument(memory, memory)

    def words(self, zeros: np.ndarray) -> Array:
        """Returns memory of the device for the words of a key, like `zeros`."""
        if self._used + KEY_BYTES > len(self._blocks[-1].on_host):
            self._add_block(MORE_KEYS * KEY_BYTES)
        part = slice(self._used, self._used + KEY_BYTES)
        self._used = part.stop
        on_host, words = (memory[part].view(zeros.dtype) for memory in self._blocks[-1])
        self._of_words[id(words)] = words, on_host
        return words

    def on_host(self, words: Array) -> np.ndarray:
        """Returns what the host writes in place of words of the device."""
        return self._of_words[id(words)][1]

    def copy(self) -> None:
        """Copies the blocks of the host to the device, in the order of the current stream."""
        for on_host, on_device in self._blocks:
            if len(on_host):
                on_device.set(on_host)


def _like(array: Array, memory: Array) -> Array:
    """Returns bytes as an array of the shape, dtype and order of axes of another."""
    order = axis_order(array)
    dense = memory.view(array.dtype).reshape([array.shape[axis] for axis in order])
    return dense.transpose([order.index(axis) for axis in range(len(order))])
