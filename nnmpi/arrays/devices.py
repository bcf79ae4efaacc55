"""Devices: which one a rank uses, and copies from and to the host while both go on computing.

    null stream     kernels ──┐                        ┌── kernels that use the result
    copy stream               └── fetch ── event    put┘
    host                                   polls it: sends, receives and adds up

Nothing here waits. The interface is CuPy's; any module with this part of it works.
"""

import tracemalloc
import warnings
from importlib import import_module
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, Backend


def used_memory(on: Backend) -> int:
    """The bytes of the arrays that are on the device; on the host, of what tracemalloc follows."""
    if on.is_host:
        return tracemalloc.get_traced_memory()[0]
    return int(on.xp.get_default_memory_pool().used_bytes())


def has_nccl(on: Backend) -> bool:
    """Whether the array library finds NCCL; CuPy's warning is held back, as ranks go on without."""
    if on.is_host:
        return False
    with warnings.catch_warnings(action="ignore"):
        return bool(import_module(f"{on.xp.__name__}.cuda.nccl").available)


def nccl(on: Backend) -> Any:
    """The NCCL of the array library; raises ValueError where it has none."""
    if not has_nccl(on):
        raise ValueError(
            f"allreduce nccl: {on.xp.__name__} finds no NCCL: install the package "
            "nvidia-nccl-cu12 (or cu13, as CuPy), or use --allreduce ring"
        )
    return import_module(f"{on.xp.__name__}.cuda.nccl")


def address(on: Backend) -> str | None:
    """Where on its node the device is that this thread uses; None of the host."""
    if on.is_host:
        return None
    return str(on.xp.cuda.runtime.deviceGetPCIBusId(on.xp.cuda.Device().id))


def choose(on: Backend, rank: int) -> None:
    """This thread uses the device of the rank with this number on its node; several ranks may share
    one."""
    if not on.is_host:
        cuda = on.xp.cuda
        cuda.Device(rank % cuda.runtime.getDeviceCount()).use()


class SideStream:
    """A CUDA stream beside that of the kernels, whose work is done in the order of the calls.

    stream   CuPy's: within `with` of it kernels are launched there
    """

    def __init__(self, on: Backend) -> None:
        self._cuda: Any = on.xp.cuda
        self._device, self._kernels = self._cuda.Device(), self._cuda.get_current_stream()
        self.stream: Any = self._cuda.Stream(non_blocking=True)

    def follow(self) -> None:
        """Makes work that is queued here from now on wait for all kernels launched so far."""
        self.stream.wait_event(self._recorded(self._kernels))

    def lead(self, event: Any = None) -> None:
        """Makes kernels launched from now on wait for all work queued here, or for this event."""
        self._kernels.wait_event(event or self.event())

    def event(self) -> Any:
        """An event that is complete when all work queued here so far is done."""
        return self._recorded(self.stream)

    def _recorded(self, stream: Any) -> Any:
        event = self._cuda.Event(disable_timing=True)
        event.record(stream)
        return event


class CopyStream(SideStream):
    """Copies of one rank. A helper thread may ask for them too."""

    def pinned(self, nbytes: int) -> np.ndarray:
        """Memory of the host that the device copies from and to by itself."""
        return np.frombuffer(self._cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def fetch(self, array: Array, host: np.ndarray) -> None:
        """Copies a contiguous array to memory that is pinned."""
        array.get(stream=self.stream, out=host, blocking=False)

    def put(self, host: np.ndarray, array: Array) -> None:
        """Copies to a contiguous array, before all that is computed from now on."""
        with self._device:
            array.set(host, stream=self.stream)
            self.lead()


class HostCopy:
    """An array on its way to the host, behind the kernels that were launched so far."""

    def __init__(self, copies: CopyStream, array: Array) -> None:
        self._array = array  # whose memory is not to be used again before it is copied
        self._host = copies.pinned(array.nbytes).view(array.dtype)
        copies.follow()
        copies.fetch(array, self._host)
        self._event = copies.event()

    def wait(self) -> list[float]:
        """Waits until the copy is complete, and returns the numbers of the array."""
        self._event.synchronize()
        values: list[float] = self._host.tolist()
        return values
