"""VersionStore: several versions of the weights of a stage, for micro-batches that are in flight.

    version     5             6             7 (newest)      free
    buffer      [ weights ]   [ weights ]   [ weights ]     [ ......... ]
    used by     micro-batch 7 micro-batch 8 nobody yet

The backward pass of a micro-batch reads the arrays that its forward pass has read (vjps close over
them). So an update leaves alone what a micro-batch uses, and writes the next version into another
buffer, which is free again when no micro-batch needs it. A version that nobody uses is updated in
place. There is one buffer of gradients: each backward pass is followed by its update.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nnmpi.arrays.backend import Array
from nnmpi.parallel.stores.local import LocalStore, StoreSpec


class Weights(NamedTuple):
    """A flat buffer, and its view for each parameter."""

    flat: Array
    values: list[Array]


class VersionStore(LocalStore):
    """`flat` is the newest version; `newest` counts the updates that it has seen."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.newest = 0
        self._weights = {0: Weights(self.flat, self.values)}
        self._free: list[Weights] = []
        self._used: dict[int, int] = {}  # by micro-batch: its version

    @property
    def buffers(self) -> int:
        """The buffers of weights that were made so far."""
        return len(self._weights) + len(self._free)

    def slot_bytes(self) -> int:
        """The memory of all versions but the newest, so far."""
        return super().slot_bytes() + (self.buffers - 1) * int(self.flat.nbytes)

    def retain(self, micro: int, version: int) -> None:
        """A micro-batch uses this version, now or later."""
        self._used[micro] = version

    @contextmanager
    def version_of(self, micro: int) -> Iterator[None]:
        """Within it, parameters have the values of the version that a micro-batch uses."""
        self.values = self._weights[self._used[micro]].values
        try:
            yield
        finally:
            self.values = self._weights[self.newest].values

    def release(self, micro: int) -> None:
        """A micro-batch needs its version no longer."""
        version = self._used.pop(micro)
        if version != self.newest and version not in self._used.values():
            self._free.append(self._weights.pop(version))

    @contextmanager
    def next_version(self) -> Iterator[None]:
        """Within it, an optimizer makes the newest version the next one.

        For the tape, no memory was written that a backward pass needs.
        """
        written = [p.storage.written for p in self.parameters]
        current = self._weights[self.newest]
        if self.newest not in self._used.values():
            following = self._weights.pop(self.newest)
        elif self._free:
            following = self._free.pop()
            following.flat[...] = current.flat
        else:
            flat = current.flat.copy()
            following = Weights(flat, self.views(flat))
        self.newest += 1
        self._weights[self.newest] = following
        self.flat, self.values = following
        try:
            yield
        finally:
            for p, clock in zip(self.parameters, written, strict=True):
                p.storage.written = clock

    def close(self) -> None:
        """Gives back the memory of all versions but the newest."""
        self._weights = {self.newest: self._weights[self.newest]}
        self._used.clear()
        self._free.clear()
