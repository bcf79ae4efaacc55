"""What is refused while a stream captures, and ends its capture."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from emulator import machine
from emulator.captured import (
    GLOBAL,
    OF_THREAD,
    ORDERS,
    RELAXED,
    Graph,
    N,
    add,
    copy,
    join,
    numbers,
)
from emulator.direct import CudaError, Kernels, Streams, call
from emulator.machine import Options

pytestmark = pytest.mark.usefixtures("as_it_was")


def refused(error: str, graph: Graph, of: Callable[..., None], *arguments: Any) -> str:
    """The problem of a call that a capture does not survive."""
    with pytest.raises(CudaError, match=error):
        of(*arguments)
    with pytest.raises(CudaError, match="cudaErrorStreamCaptureInvalidated"):
        graph.end()
    found = machine.problems()
    assert len(found) == 1
    return found[0]


@ORDERS
@pytest.mark.parametrize("mode", [GLOBAL, OF_THREAD, RELAXED])
def test_waits_for_what_is_captured_are_refused(order: str, mode: int) -> None:
    machine.set_options(Options(order=order))
    s = Streams()
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("cudaStreamSynchronize", (s.a,)),
        ("cudaStreamQuery", (s.a,)),
        ("cudaDeviceSynchronize", ()),
    ]
    for name, arguments in calls:
        found = refused("CaptureUnsupported", Graph(s.a, mode), call, name, *arguments)
        assert "during a capture: a " in found
    for name in ("cudaEventSynchronize", "cudaEventQuery"):
        graph = Graph(s.a, mode)
        call("cudaEventRecord", s.event, s.a)
        assert "an event" in refused("cudaErrorCapturedEvent", graph, call, name, s.event)


def test_copies_of_pageable_memory_are_refused() -> None:
    s, x = Streams(), numbers()
    host = ctypes.c_void_p(np.zeros(N, "u4").ctypes.data)
    for to, source, kind in ((x.pointer, host, 1), (host, x.pointer, 2)):
        found = refused("CaptureUnsupported", Graph(s.a), copy, to, source, s.a, kind)
        assert "pageable memory" in found


def test_what_a_mode_forbids(kernels: Kernels) -> None:
    s, x, p = Streams(), numbers(), ctypes.c_void_p()
    size = ctypes.c_size_t(4 * N)
    call("cudaMalloc", ctypes.byref(p), size)
    calls = [
        ("cudaMalloc", (ctypes.byref(p), size), "memory is allocated"),
        ("cudaHostAlloc", (ctypes.byref(p), size, 0), "memory is allocated"),
        ("cudaFree", (x.pointer,), "memory is freed"),
        ("cudaMemcpy", (x.pointer, x.pointer, size, 3), "a copy that the host waits for"),
        ("cudaStreamSynchronize", (s.b,), "a wait for a stream"),
        ("cudaEventQuery", (s.event,), "a query of an event"),
    ]
    for mode in (GLOBAL, OF_THREAD):
        for name, arguments, text in calls:
            found = refused("CaptureUnsupported", Graph(s.a, mode), call, name, *arguments)
            assert found == f"during a capture: {text}, which its mode forbids"
    graph = Graph(s.a)  # relaxed
    y = numbers()
    add(kernels, y, x, 1, s.a)
    call("cudaStreamSynchronize", s.b)
    graph.end().run(s.a)
    assert y.numpy()[0] == 1


def in_thread(work: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_modes_are_of_threads() -> None:
    s, arrays = Streams(), []
    graph = Graph(s.a, OF_THREAD)
    in_thread(lambda: arrays.append(numbers()))
    graph.end()
    for mode in (GLOBAL, OF_THREAD):
        graph = Graph(s.a, mode)
        found = refused("CaptureWrongThread", graph, in_thread, graph.end)
        assert found == "the end of a capture in another thread"
    in_thread(Graph(s.a, RELAXED).end)


@pytest.mark.parametrize("mode", [GLOBAL, RELAXED])
def test_the_null_stream_waits_for_no_capture(kernels: Kernels, mode: int) -> None:
    blocking, x, status = ctypes.c_void_p(), numbers(), ctypes.c_int()
    call("cudaStreamCreate", ctypes.byref(blocking))
    for issue in (
        lambda: add(kernels, x, x, 1, None),
        lambda: copy(x.pointer, x.pointer, None),
        lambda: call("cudaStreamSynchronize", None),
    ):
        found = refused("CaptureImplicit", Graph(blocking, mode), issue)
        assert "in the null stream, which waits for a stream that captures" in found
    graph = Graph(blocking, mode)
    with pytest.raises(CudaError, match="CaptureImplicit"):
        call("cudaStreamIsCapturing", None, ctypes.byref(status))
    graph.end()  # which that did not harm
    other = Graph(Streams().a, mode)  # which the null stream does not wait for
    add(kernels, x, x, 1, None)
    other.end()
    assert x.numpy()[0] == 1


def test_events_do_not_cross_the_bounds_of_a_capture(kernels: Kernels) -> None:
    s, other, x = Streams(), Streams(), numbers()
    call("cudaEventRecord", s.event, s.b)
    outside = refused("CaptureIsolation", Graph(s.a), call, "cudaStreamWaitEvent", s.a, s.event, 0)
    assert "recorded outside of it" in outside
    graph = Graph(s.a)
    call("cudaEventRecord", s.event, s.a)
    assert "null" not in refused(
        "cudaErrorCapturedEvent", graph, call, "cudaStreamWaitEvent", None, s.event, 0
    )
    with pytest.raises(CudaError, match="cudaErrorCapturedEvent"):  # also after the capture
        call("cudaStreamWaitEvent", s.b, s.event, 0)
    machine.problems()
    graph, second = Graph(s.a), Graph(other.a)
    assert "another capture" in refused("CaptureMerge", graph, join, s, other.a, s.a)
    machine.problems()
    del second
    graph = Graph(s.a)
    join(s, s.b, s.a)
    graph.stream = s.b
    with pytest.raises(CudaError, match="CaptureUnmatched"):
        graph.end()
    machine.problems()
    graph = Graph(s.a)
    join(s, s.b, s.a)
    add(kernels, x, x, 1, s.b)
    with pytest.raises(CudaError, match="CaptureUnjoined"):
        graph.end()
    assert "before a wait for that stream's work" in machine.problems()[0]


def test_captures_begin_and_end_once() -> None:
    s = Streams()
    ended = Graph(s.a).end()
    with pytest.raises(CudaError, match="CaptureUnsupported"):
        Graph(None)
    assert machine.problems() == ["a capture of the null stream"]
    with pytest.raises(CudaError, match="IllegalState"):
        ended.end()
    assert machine.problems() == ["the end of a capture in a stream that does not capture"]
    found = refused("IllegalState", Graph(s.a), Graph, s.a)
    assert found == "a capture of a stream that captures already"


def test_a_capture_that_is_not_ended_is_a_problem() -> None:
    s, status = Streams(), ctypes.c_int()
    Graph(s.a)
    call("cudaStreamIsCapturing", s.a, ctypes.byref(status))
    assert status.value == 1
    assert machine.remaining_problems() == ["during a capture: a wait for the device"]
    call("cudaStreamIsCapturing", s.a, ctypes.byref(status))
    assert status.value == 0
    Graph(s.a)
    with pytest.raises(CudaError, match="CaptureUnsupported"):
        call("cudaStreamDestroy", s.a)
    machine.problems()


def test_an_invalid_capture_takes_no_work(kernels: Kernels) -> None:
    s, x, status = Streams(), numbers(), ctypes.c_int()
    Graph(s.a)
    machine.library().cudaStreamSynchronize(s.a)
    machine.library().cudaStreamIsCapturing(s.a, ctypes.byref(status))
    assert status.value == 2
    with pytest.raises(CudaError):
        add(kernels, x, x, 1, s.a)
    assert "during a capture that is invalid: add" in machine.problems()
    assert x.numpy()[0] == 0


def test_libraries_that_wait_are_not_emulated_in_a_capture() -> None:
    s = Streams()
    found = refused("NotSupported", Graph(s.a), call, "emulator_call", b"cuDNN", s.a)
    assert found == "during a capture: cuDNN, not emulated"
