"""Gauges of the memory that a recorded pass takes: of arrays without numbers, or with them."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from nnmpi.arrays.backend import META, Backend
from nnmpi.arrays.meta.array import AllocationCounter, counting


class Meter(NamedTuple):
    """Bytes of arrays that are alive, and the most of them since the last `begin`."""

    current: Callable[[], int]
    peak: Callable[[], int]
    reset_peak: Callable[[], None]

    def begin(self) -> int:
        """Forgets the most so far; returns the bytes that are alive."""
        self.reset_peak()
        return self.current()


@contextmanager
def memory_meter(on: Backend) -> Iterator[Meter]:
    """Within it memory is counted: of arrays without numbers where `on` is META."""
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


_ALONE = Lock()  # since tracemalloc counts for all threads
