"""VersionStore: several versions of the weights of a stage, for the micro-batches in flight.

    version     5             6             7 (newest)      free
    buffer      [ weights ]   [ weights ]   [ weights ]     [ ......... ]
    used by     micro-batch 7 micro-batch 8 none yet

The backward pass of a micro-batch reads the arrays that its forward pass has read, since autograd
keeps references to them. So an update does not touch a version that a micro-batch uses: it writes
the next version to another buffer, which is free again when no micro-batch needs it. A version that
no micro-batch uses is updated in place. There is one buffer of gradients, because each backward
pass is followed by its update.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nnmpi.arrays.backend import Array
from nnmpi.parallel.stores.local import LocalStore, StoreSpec


class Weights(NamedTuple):
    """A flat buffer with one version of a stage's weights, and each parameter's view into it."""

    flat: Array
    values: list[Array]


class VersionStore(LocalStore):
    """The store of a PipeDream stage. `flat` is the newest version of its weights, and `newest` its
    number: that of updates so far. `most` is the number of versions in a full pipeline."""

    def __init__(self, spec: StoreSpec, most: int) -> None:
        super().__init__(spec)
        self._most = most
        self.newest = 0
        self._weights = {0: Weights(self.flat, self.values)}
        self._free: list[Weights] = []
        self._used: dict[int, int] = {}  # by micro-batch: its version

    @property
    def buffers(self) -> int:
        """The number of weight buffers allocated so far."""
        return len(self._weights) + len(self._free)

    def slot_bytes(self) -> int:
        """Returns the bytes of all versions in a full pipeline but the newest, and of other
        temporary memory."""
        return super().slot_bytes() + (self._most - 1) * int(self.flat.nbytes)

    def retain(self, micro: int, version: int) -> None:
        """Keeps a version of the weights until `release(micro)`, since a micro-batch uses it."""
        self._used[micro] = version

    @contextmanager
    def version_of(self, micro: int) -> Iterator[None]:
        """Returns a context in which parameters have the version of a micro-batch."""
        self.values = self._weights[self._used[micro]].values
        try:
            yield
        finally:
            self.values = self._weights[self.newest].values

    def release(self, micro: int) -> None:
        """Ends a micro-batch's use of a version, whose memory is free after its last use."""
        version = self._used.pop(micro)
        if version != self.newest and version not in self._used.values():
            self._free.append(self._weights.pop(version))

    @contextmanager
    def next_version(self) -> Iterator[None]:
        """Returns a context in which an optimizer writes the next version: to another buffer if a
        micro-batch still uses the newest. The write is hidden from autograd's version counters, as
        it never changes memory that a backward pass still needs."""
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
        """Frees the memory of all versions of the weights except for the newest one."""
        self._weights = {self.newest: self._weights[self.newest]}
        self._used.clear()
        self._free.clear()
