"""For tests of captures: graphs, arrays of N numbers, and work with them."""

import ctypes
from typing import Any

import numpy as np
import pytest

from emulator import machine
from emulator.direct import DeviceArray, Kernels, Streams, call

GLOBAL, OF_THREAD, RELAXED = 0, 1, 2  # modes of captures
ORDERS = pytest.mark.parametrize("order", machine.ORDERS)
ADD = """.visible .entry add(.param .u64 out, .param .u64 in, .param .u32 n) {
    .reg .b32 %i; .reg .b32 %v; .reg .b32 %n; .reg .b64 %o; .reg .b64 %x; .reg .b64 %p;
    ld.param.u64 %o, [out]; ld.param.u64 %x, [in]; ld.param.u32 %n, [n];
    mov.u32 %i, %tid.x; mul.wide.u32 %p, %i, 4; add.s64 %x, %x, %p; add.s64 %o, %o, %p;
    ld.global.u32 %v, [%x]; add.u32 %v, %v, %n; st.global.u32 [%o], %v; ret; }"""
N = 8


class Graph:
    """What is issued to a stream from now until end()."""

    def __init__(self, stream: ctypes.c_void_p, mode: int = RELAXED) -> None:
        self.stream, self._exec = stream, ctypes.c_void_p()
        call("cudaStreamBeginCapture", stream, mode)

    def end(self) -> "Graph":
        graph = ctypes.c_void_p()
        call("cudaStreamEndCapture", self.stream, ctypes.byref(graph))
        call("cudaGraphInstantiate", ctypes.byref(self._exec), graph, ctypes.c_ulonglong(0))
        call("cudaGraphDestroy", graph)
        return self

    def launch(self, stream: ctypes.c_void_p) -> None:
        call("cudaGraphUpload", self._exec, stream)
        call("cudaGraphLaunch", self._exec, stream)

    def run(self, stream: ctypes.c_void_p) -> None:
        """Launched, and waited for."""
        self.launch(stream)
        call("cudaStreamSynchronize", stream)

    def __del__(self) -> None:
        machine.library().cudaGraphExecDestroy(self._exec)


def numbers(value: int = 0, dtype: str = "u4") -> DeviceArray:
    return DeviceArray(np.full(N, value, dtype))


def add(kernels: Kernels, out: Any, x: Any, n: int, stream: ctypes.c_void_p) -> None:
    """out = x + n"""
    kernels.launch("add", [out, x, ctypes.c_uint(n)], N, stream=stream)


def copy(to: Any, source: Any, stream: Any, kind: int = 3) -> None:
    call("cudaMemcpyAsync", to, source, ctypes.c_size_t(4 * N), kind, stream)


def put(x: DeviceArray, host: np.ndarray) -> None:
    source, size = ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(host.nbytes)
    call("cudaMemcpy", x.pointer, source, size, 1)


def handle_of(stream: ctypes.c_void_p) -> ctypes.c_void_p:
    """A handle of cuBLAS."""
    handle = ctypes.c_void_p()
    call("cublasCreate_v2", ctypes.byref(handle))
    call("cublasSetStream_v2", handle, stream)
    return handle


def product(a: DeviceArray, b: DeviceArray, c: DeviceArray, stream: ctypes.c_void_p) -> None:
    """c = a b, of matrices of 2 x 2."""
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    arguments = (one, a.pointer, 2, b.pointer, 2, zero, c.pointer, 2)
    call("cublasSgemm_v2", handle_of(stream), 0, 0, 2, 2, 2, *arguments)


def join(s: Streams, waiting: ctypes.c_void_p, other: ctypes.c_void_p) -> None:
    call("cudaEventRecord", s.event, other)
    call("cudaStreamWaitEvent", waiting, s.event, 0)
