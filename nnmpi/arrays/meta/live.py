"""LiveBytes: the memory that arrays without numbers would take while they are alive."""

from contextvars import ContextVar
from typing import Any
from weakref import finalize


class LiveBytes:
    """The bytes of arrays that were made since counting began and that are alive, and the most."""

    def __init__(self) -> None:
        self.bytes = self.most = 0

    def count(self, array: Any) -> None:
        """Counts an array until it is freed."""
        nbytes = int(array.nbytes)
        self._change(nbytes)
        finalize(array, self._change, -nbytes).atexit = False

    def forget(self) -> None:
        """Begins a new most."""
        self.most = self.bytes

    def _change(self, nbytes: int) -> None:
        self.bytes += nbytes
        self.most = max(self.most, self.bytes)


counting: ContextVar[LiveBytes | None] = ContextVar("counting", default=None)
"""The counter of arrays that are made, if they are counted."""
