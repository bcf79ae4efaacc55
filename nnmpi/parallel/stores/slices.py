"""SliceStore: gradients of a reproducible run, one buffer for each partial sum of slices.

buffers   [ sum of slices 0-3 ]   [ sum of slices 4-5 ]   [ slice 6 ]  ◄── flat_grad, the top
"""

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.parallel.stores.local import LocalStore, StoreSpec


class SliceStore(LocalStore):
    """A stack of gradient buffers for partial sums of slices, of which `flat_grad` is the top.

    At the end of a step that is the sum over all slices. Buffers are kept for the next step; `most`
    is the height that the stack will reach.
    """

    def __init__(self, spec: StoreSpec, most: int) -> None:
        super().__init__(spec)
        self.buffers = [(self.flat_grad, self.grad_memories)]
        self._height, self._most = 0, most

    def gradient_bytes(self) -> int:
        """The memory of all buffers of a step, also before the first one."""
        return super().gradient_bytes() * self._most

    def clear(self) -> None:
        """Empties the stack."""
        self._height = 0

    def push(self) -> None:
        """Adds a buffer whose content is undefined."""
        if self._height == len(self.buffers):
            fresh = np.zeros_like(self.flat_grad)
            self.buffers.append((fresh, self.views(fresh)))
        self._show(self._height + 1)

    def pop(self) -> Array:
        """Removes the top buffer and returns it: its content holds until the next `push`."""
        top = self.flat_grad
        self._show(self._height - 1)
        return top

    def _show(self, height: int) -> None:
        self._height = height
        if height:
            self.flat_grad, self.grad_memories = self.buffers[height - 1]
