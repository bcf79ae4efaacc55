"""SliceStore: one copy of the parameters, and a stack of gradient buffers for partial sums."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnmpi.backend import CPU, Array
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.stores.local import LocalStore


class SliceStore(LocalStore):
    """`flat_grad` is the top of the stack; at the end of a step it is the sum over all slices.

    Buffers are kept for the next step; `most` is the height that the stack will reach.
    """

    def __init__(self, parameters: Sequence[Parameter], dtype: Any, head: int, most: int) -> None:
        super().__init__(parameters, dtype, CPU, head)
        self.buffers = [(self.flat_grad, self.slots)]
        self._height, self._most = 0, most

    def gradient_bytes(self) -> int:
        """All buffers of a step, also before the first one."""
        return super().gradient_bytes() * self._most

    def begin(self) -> None:
        """Starts a step: the stack is empty."""
        self._height = 0

    def push(self) -> None:
        """Adds a buffer whose content is undefined."""
        if self._height == len(self.buffers):
            fresh = np.zeros_like(self.flat_grad)
            self.buffers.append((fresh, self.views(fresh)))
        self._show(self._height + 1)

    def clear(self) -> None:
        """No parameter has a gradient in the top buffer."""
        super().begin()

    def pop(self) -> Array:
        """Removes the top buffer and returns it: its content holds until the next `push`."""
        top = self.flat_grad
        self._show(self._height - 1)
        return top

    def _show(self, height: int) -> None:
        self._height = height
        if height:
            self.flat_grad, self.slots = self.buffers[height - 1]
