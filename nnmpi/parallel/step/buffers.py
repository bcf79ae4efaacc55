"""Buffers for the tensors that one stage sends to the next, and for their gradients."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.arrays.kernels import Vjp
from nnmpi.autograd import Tensor
from nnmpi.nn.graph import Edge
from nnmpi.nn.parameter import inverse


class Pool:
    """A pool of buffers for a tensor between stages, which `edge` describes."""

    def __init__(self, edge: Edge, on: Backend = CPU) -> None:
        self.edge, self._xp, self.free = edge, on.xp, list[Array]()
        self.shape = cache(edge.shape)  # by the number of samples
        self._inverse = inverse(edge.order)

    def acquire(self, samples: int) -> "Buffer":
        """Returns a free buffer for this number of samples, or a new one."""
        shape = self.shape(samples)
        n = math.prod(shape)
        memory = self.free.pop() if self.free else self._xp.empty(0, self.edge.dtype)
        if len(memory) < n:
            memory = self._xp.empty(n, self.edge.dtype)
        used = memory[:n].reshape([*map(shape.__getitem__, self.edge.order)])
        return Buffer(self, memory, used.transpose(self._inverse))


class Buffer(NamedTuple):
    """Memory of a Pool in use for one array, a view of it whose axes are in the model's order.
    `memory` is 1-D, and may be longer than the array."""

    pool: Pool
    memory: Array
    array: Array

    def give_back(self) -> None:
        """Gives the memory back to its pool: nobody may use the array after that."""
        self.pool.free.append(self.memory)


class Received(Tensor):
    """A tensor from another stage, to which its gradient is sent back; this accumulates in a
    buffer, which the function `take` provides."""

    __slots__ = ("_buffer", "_take")

    def __init__(self, data: Array, take: Callable[[], Buffer]) -> None:
        super().__init__(data, requires_grad=True)
        self._take = take
        self._buffer: Buffer | None = None

    def receive(self, vjp: Vjp, g: Any) -> None:
        if self._buffer is not None:
            self._buffer.array[...] += vjp(g, None)
            return
        self._buffer = self._take()
        slot = self.grad_array = self._buffer.array
        new = vjp(g, slot)
        if new is not slot:
            slot[...] = new

    def set_gradient(self, gradient: Array) -> None:
        """Copies a gradient that a replay has computed into a new buffer."""
        self._buffer = self._take()
        self._buffer.array[...] = gradient

    def gradient(self) -> Buffer:
        """Returns the buffer with the gradient; zeros if the stage has not used the tensor."""
        if self._buffer is None:
            self._buffer = self._take()
            self._buffer.array[...] = 0
        return self._buffer
