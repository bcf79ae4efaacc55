"""Devices: chooses the device of a rank, and copies to and from the host while both compute.

    null stream     kernels ──┐                        ┌── kernels that use the result
    copy stream               └── fetch ── event    put┘
    host                                   polls it: sends, receives and adds up

No function here waits. A device's array library is CuPy, or any module that has the same functions.
"""

import tracemalloc
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, Backend


def used_memory(on: Backend) -> int:
    """Returns the bytes of arrays on the device; on the host, the bytes that tracemalloc traces."""
    if on.is_host:
        return tracemalloc.get_traced_memory()[0]
    return int(on.xp.get_default_memory_pool().used_bytes())


def address(on: Backend) -> str | None:
    """Returns the PCI address of the device that this thread uses; None on the host."""
    if on.is_host:
        return None
    return str(on.xp.cuda.runtime.deviceGetPCIBusId(on.xp.cuda.Device().id))


def choose(on: Backend, rank: int) -> None:
    """Makes this thread use GPU `rank`, that on the node, modulo the number of the node's GPUs."""
    if not on.is_host:
        cuda = on.xp.cuda
        cuda.Device(rank % cuda.runtime.getDeviceCount()).use()


class SideStream:
    """A second stream, beside that of the kernels: the null stream, or one that captures them as a
    graph, of which work on this stream is a part then. Work on it is done in the order of the
    calls. Kernels launched inside `with side.stream` go there."""

    def __init__(self, on: Backend) -> None:
        self._cuda: Any = on.xp.cuda
        self._kernels = self._cuda.get_current_stream
        self.stream: Any = self._cuda.Stream(non_blocking=True)

    def follow(self) -> None:
        """Makes later work on this stream wait for all kernels launched before."""
        self.stream.wait_event(self._recorded(self._kernels()))

    def lead(self, event: Any = None) -> None:
        """Makes later kernels wait for `event`, or for all work on this stream."""
        self._kernels().wait_event(event or self.event())

    def event(self) -> Any:
        """Records an event that completes when all work queued on this stream before is done."""
        return self._recorded(self.stream)

    def _recorded(self, stream: Any) -> Any:
        event = self._cuda.Event(disable_timing=True)
        event.record(stream)
        return event


class CopyStream(SideStream):
    """The stream for copies between a rank's device and the host; helper threads may use it too."""

    def __init__(self, on: Backend) -> None:
        super().__init__(on)
        self._device, self._leads = self._cuda.Device(), self._kernels()

    def pinned(self, nbytes: int) -> np.ndarray:
        """Allocates pinned host memory, which the device accesses directly."""
        return np.frombuffer(self._cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def fetch(self, array: Array, host: np.ndarray) -> None:
        """Starts to copy a contiguous device array to pinned host memory."""
        array.get(stream=self.stream, out=host, blocking=False)

    def put(self, host: np.ndarray, array: Array) -> None:
        """Starts to copy host memory to a device array; later kernels wait for it."""
        with self._device:
            array.set(host, stream=self.stream)
            self._leads.wait_event(self.event())  # never a stream that captures meanwhile
