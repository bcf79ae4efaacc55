"""Meter: the memory that a recorded pass takes, for arrays with and without data."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from nnmpi.arrays.backend import META, Backend
from nnmpi.arrays.meta.array import AllocationCounter, counting


class Meter(NamedTuple):
    """Functions that return the bytes of live arrays, and their peak since the last `begin`."""

    current: Callable[[], int]
    peak: Callable[[], int]
    reset_peak: Callable[[], None]

    def begin(self) -> int:
        """Resets the peak, and returns the bytes of live arrays."""
        self.reset_peak()
        return self.current()


@contextmanager
def memory_meter(on: Backend) -> Iterator[Meter]:
    """A context that yields a Meter: it counts arrays without data if `on` is META, otherwise what
    tracemalloc traces."""
    if on is META:
        live = AllocationCounter()
        token = counting.set(live)
        try:
            yield Meter(lambda: live.bytes, lambda: live.peak, live.reset_peak)
        finally:
            counting.reset(token)
        return
    with _ALONE:
        was_tracing = tracemalloc.is_tracing()
        tracemalloc.start()
        try:
            yield Meter(
                lambda: tracemalloc.get_traced_memory()[0],
                lambda: tracemalloc.get_traced_memory()[1],
                tracemalloc.reset_peak,
            )
        finally:
            if not was_tracing:
                tracemalloc.stop()


_ALONE = Lock()  # tracemalloc counts all threads: ranks that are threads must take turns
