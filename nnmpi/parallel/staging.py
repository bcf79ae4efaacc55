"""Copies a slice of a device array to host memory before a message or an MPI collective, and the
slice that it has changed back to the device.

    piece      [ a b c d ]                         [ A b c d ]
                   └──── comes ────┐    ┌── goes ────┘
    host                       [ a b c d ] ── work ──► [ A . . . ]

`comes` is the slice that the communication (`work`) needs, `goes` the slice that it changes. The
copies of several pieces may be complete in any order, but the communication of each piece begins
only after that of the piece before it: messages and MPI's own sums are matched across ranks by
their order. No other file makes the host wait for a device before a message.
"""

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.devices import CopyStream


class StagingMemory:
    """A pool of pinned host buffers of one length, for copies to and from a device."""

    def __init__(self, copies: CopyStream, nbytes: int) -> None:
        self._copies, self._nbytes = copies, nbytes
        self._free: list[np.ndarray] = []

    def acquire(self) -> np.ndarray:
        """Returns a free or a new buffer; a copy started now runs after those of its last use."""
        if self._free:
            return self._free.pop()
        return self._copies.pinned(max(self._nbytes, 1))[: self._nbytes]

    def give_back(self, memory: np.ndarray) -> None:
        """Puts a host buffer back into the pool, when the host is done with it."""
        self._free.append(memory)


ALL, NOTHING = slice(None), slice(0, 0)


class Staging:
    """A piece of a device array on its way through host memory.

    The message may begin when the copy to the host is complete, and the message of `before`, the
    Staging that was made before this one, has begun.
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
        self._piece = piece  # keeps the device memory alive during the copies
        self.host = memory.acquire().view(piece.dtype)
        copies.follow()
        if piece[comes].size:
            copies.fetch(piece[comes], self.host[comes])
        self._event, self._is_ready = copies.event(), False

    def wait(self) -> None:
        """Waits until the copy to the host is complete."""
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
