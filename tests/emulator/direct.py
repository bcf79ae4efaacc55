"""The emulated driver without CuPy, for its own tests: arrays in its memory, and kernels in PTX."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator import machine

HEAD = ".version 8.5\n.target sm_90\n.address_size 64\n"


class CudaError(Exception):
    """The name of an error that a call returned."""


def call(name: str, *arguments: Any) -> None:
    """A function of CUDA; raises CudaError with the name of what it returns."""
    driver = machine.library()
    error = getattr(driver, name)(*arguments)
    if error:
        text = driver.cudaGetErrorName
        text.restype = ctypes.c_char_p
        raise CudaError(text(error).decode())


class DeviceArray:
    """An array in the memory of the device."""

    def __init__(self, host: np.ndarray) -> None:
        self.like = np.ascontiguousarray(host)
        self.pointer = ctypes.c_void_p()
        call("cudaMalloc", ctypes.byref(self.pointer), ctypes.c_size_t(self.like.nbytes))
        self._copy(self.pointer, self._of(self.like), 1)

    def __del__(self) -> None:
        machine.library().cudaFree(self.pointer)

    def numpy(self) -> np.ndarray:
        """Its values, when all work is done."""
        host = np.empty_like(self.like)
        self._copy(self._of(host), self.pointer, 2)
        return host

    def _of(self, host: np.ndarray) -> ctypes.c_void_p:
        return ctypes.c_void_p(host.ctypes.data)

    def _copy(self, to: Any, source: Any, kind: int) -> None:
        call("cudaMemcpy", to, source, ctypes.c_size_t(self.like.nbytes), kind)


class Kernels:
    """A module in PTX."""

    def __init__(self, text: str) -> None:
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), (HEAD + text).encode())

    def launch(
        self,
        name: str,
        arguments: Sequence[Any],
        threads: int | tuple[int, int, int],
        blocks: int | tuple[int, int, int] = 1,
        dynamic: int = 0,
        stream: Any = None,
    ) -> None:
        """Starts a kernel; arguments are arrays, or numbers of ctypes."""
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        values = [a.pointer if isinstance(a, DeviceArray) else a for a in arguments]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        sizes = [(n, 1, 1) if isinstance(n, int) else n for n in (blocks, threads)]
        numbers = [ctypes.c_uint(n) for size in sizes for n in size]
        call("cuLaunchKernel", function, *numbers, ctypes.c_uint(dynamic), stream, places, None)


class Streams:
    """Two streams that do not wait for the null stream, and an event."""

    def __init__(self) -> None:
        self.a, self.b, self.event = (ctypes.c_void_p() for _ in range(3))
        for stream in (self.a, self.b):
            call("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
        call("cudaEventCreateWithFlags", ctypes.byref(self.event), 2)
