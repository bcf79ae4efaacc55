"""Staging: a piece of an array of a device on its way through memory of the host.

    piece      [ a b c d ]                         [ A b c d ]
                   └──── comes ────┐    ┌── goes ────┘
    host                       [ a b c d ] ── work ──► [ A . . . ]

Works begin in the order in which they were started: messages and MPI's own sums are matched by it.
This file alone waits for a device before a message.
"""

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.devices import CopyStream


class StagingMemory:
    """Pinned buffers of one length, which are used again."""

    def __init__(self, copies: CopyStream, nbytes: int) -> None:
        self._copies, self._nbytes = copies, nbytes
        self._free: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """A buffer of this length, which copies that were started earlier may still use."""
        if self._free:
            return self._free.pop()
        return self._copies.pinned(max(self._nbytes, 1))[: self._nbytes]

    def give_back(self, memory: np.ndarray) -> None:
        """Keep a buffer that the host no longer uses for another piece."""
        self._free.append(memory)


ALL, NOTHING = slice(None), slice(0, 0)


class Staging:
    """A piece of an array, whose slice `comes` is copied to the host, and `goes` back to the
    device.

    It is the DeviceCopies of a work, which begins when the copies are done that were started
    before, and when the work of `before` has begun.
    """

    def __init__(
        self,
        copies: CopyStream,
        piece: Array,
        memory: StagingMemory,
        before: "Staging | None",
        comes: slice,
        goes: slice,
    ) -> None:
        self._copies, self._memory, self._before, self._goes = copies, memory, before, goes
        self._piece = piece  # also keeps the memory that is copied
        self.host = memory.take().view(piece.dtype)
        copies.follow()
        if piece[comes].size:
            copies.fetch(piece[comes], self.host[comes])
        self._event, self._is_ready = copies.event(), False

    def wait(self) -> None:
        """Wait until the device has copied the piece to the host."""
        self._event.synchronize()

    def ready(self) -> bool:
        if not self._is_ready and (self._before is None or self._before._is_ready):
            self._before, self._is_ready = None, self._event.done
        return self._is_ready

    def complete(self) -> None:
        self._before, self._is_ready = None, True
        if self._piece[self._goes].size:
            self._copies.put(self.host[self._goes], self._piece[self._goes])
        del self._piece
        self._memory.give_back(self.host.view(np.uint8))
