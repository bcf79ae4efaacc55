"""Graphs by the capture of streams: what is recorded, and how CuPy uses them."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_emulator

from emulator import machine
from emulator.captured import (
    ORDERS,
    Graph,
    N,
    add,
    copy,
    handle_of,
    join,
    numbers,
    product,
    put,
)
from emulator.direct import CudaError, DeviceArray, Kernels, Streams, call
from emulator.machine import Options

pytestmark = pytest.mark.usefixtures("as_it_was")


# ---- what is recorded


@ORDERS
def test_work_is_recorded_and_runs_at_each_launch(kernels: Kernels, order: str) -> None:
    machine.set_options(Options(order=order))
    s = Streams()
    x, y, z, out = numbers(), numbers(), numbers(5), numbers()
    graph = Graph(s.a)
    add(kernels, y, x, 1, s.a)
    copy(z.pointer, y.pointer, s.a)
    call("cudaMemsetAsync", y.pointer, 0, ctypes.c_size_t(4), s.a)
    add(kernels, out, z, 10, s.a)
    graph.end()
    assert z.numpy()[0] == 5  # nothing has run
    for value, stream in ((1, s.a), (2, s.b), (3, None)):
        put(x, np.full(N, value, "u4"))
        graph.run(stream)
        assert out.numpy().tolist() == [value + 11] * N
        assert y.numpy()[:2].tolist() == [0, value + 1]


@ORDERS
def test_products_of_cublas_are_recorded(order: str) -> None:
    machine.set_options(Options(order=order))
    s, a, c = Streams(), DeviceArray(np.eye(2, dtype="f")), DeviceArray(np.zeros((2, 2), "f"))
    graph = Graph(s.a)
    product(a, a, c, s.a)
    graph.end()
    assert not c.numpy().any()
    for value in (2, 3):
        put(a, np.eye(2, dtype="f") * np.float32(value))
        graph.run(s.a)
        assert (c.numpy() == np.eye(2) * value**2).all()


@pytest.mark.parametrize("order", ["late", "random"])
def test_a_graph_never_runs_twice_at_a_time(kernels: Kernels, order: str) -> None:
    s = Streams()
    for seed in range(8):
        machine.set_options(Options(order=order, seed=seed))
        x, y = numbers(), numbers()
        graph = Graph(s.a)
        add(kernels, y, x, 1, s.a)
        add(kernels, x, y, 1, s.a)
        graph.end()
        for stream in (s.a, s.b, s.a):
            graph.launch(stream)
        call("cudaDeviceSynchronize")
        assert x.numpy()[0] == 6


def test_a_launch_in_a_capture_is_a_part_of_it(kernels: Kernels) -> None:
    s, x = Streams(), numbers()
    inner = Graph(s.a)
    add(kernels, x, x, 1, s.a)
    inner.end()
    outer = Graph(s.b)
    inner.launch(s.b)
    inner.launch(s.b)
    outer.end().run(s.a)
    assert x.numpy()[0] == 2


@ORDERS
def test_a_stream_joins_a_capture_by_an_event(kernels: Kernels, order: str) -> None:
    machine.set_options(Options(order=order))
    s, x, y = Streams(), numbers(), numbers()
    graph = Graph(s.a)
    add(kernels, x, x, 1, s.a)
    join(s, s.b, s.a)
    add(kernels, y, x, 1, s.b)
    join(s, s.a, s.b)
    add(kernels, x, y, 1, s.a)
    graph.end()
    add(kernels, y, y, 7, s.b)  # which captures no more
    call("cudaStreamSynchronize", s.b)
    assert y.numpy()[0] == 7
    for _ in range(2):
        graph.launch(s.a)
    call("cudaDeviceSynchronize")
    assert x.numpy()[0] == 6


def gone_kernel(kernels: Kernels, x: DeviceArray, y: DeviceArray, s: Streams) -> None:
    add(kernels, y, x, 1, s.a)


def gone_copy(_: Kernels, x: DeviceArray, y: DeviceArray, s: Streams) -> None:
    copy(y.pointer, x.pointer, s.a)


def gone_memset(_: Kernels, x: DeviceArray, y: DeviceArray, s: Streams) -> None:
    call("cudaMemsetAsync", x.pointer, 0, ctypes.c_size_t(4), s.a)


def gone_product(_: Kernels, x: DeviceArray, y: DeviceArray, s: Streams) -> None:
    product(x, x, y, s.a)


arrays_of_batches: list[DeviceArray] = []  # which live longer


def gone_batch(_: Kernels, x: DeviceArray, y: DeviceArray, s: Streams) -> None:
    each = DeviceArray(np.array([x.pointer.value], "u8"))
    arrays_of_batches.append(each)
    p, one = each.pointer, ctypes.byref(ctypes.c_float(1))
    arguments = (0, 0, 2, 2, 2, one, p, 2, p, 2, one, p, 2, 1)
    call("cublasSgemmBatched", handle_of(s.a), *arguments)


def gone_scan(_: Kernels, x: DeviceArray, y: DeviceArray, s: Streams) -> None:
    values = (s.a.value, ord("i"), x.pointer.value, N, 5)
    machine.library().emulator_scan(*map(ctypes.c_int64, values))


@ORDERS
@pytest.mark.parametrize(
    ("use", "text"),
    [
        (gone_kernel, "read out of bounds"),
        (gone_copy, "a copy or memset of freed memory"),
        (gone_memset, "a copy or memset of freed memory"),
        (gone_product, "cuBLAS: matrix A is not within an allocation"),
        (gone_batch, "a matrix of a batch is not within an allocation"),
        (gone_scan, "scan of freed memory"),
    ],
)
def test_memory_that_was_freed_is_found_at_the_launch(
    kernels: Kernels, use: Callable[..., None], text: str, order: str
) -> None:
    machine.set_options(Options(order=order))
    s, x, y = Streams(), numbers(), numbers()
    graph = Graph(s.a)
    use(kernels, x, y, s)
    graph.end()
    graph.launch(s.a)
    del x  # which waits for the first launch
    assert machine.problems() == []
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        graph.run(s.a)
    assert text in machine.problems()[0]


# ---- CuPy


@pytest.fixture
def cp() -> Any:
    return DEVICE.xp


@needs_emulator
@ORDERS
def test_cupy_captures_and_launches(cp: Any, order: str) -> None:
    machine.set_options(machine.of_environment()._replace(order=order))
    s, x = cp.cuda.Stream(non_blocking=True), cp.zeros(5, "f")
    out = cp.empty((), "f")
    cp.cuda.Device().synchronize()
    with s:
        s.begin_capture()
        y = x * 2 + 1  # in memory that the pool gets meanwhile
        y.sum(out=out)
        assert s.is_capturing()
        graph = s.end_capture()
    assert not s.is_capturing()
    for value in range(3):
        x[...] = value
        cp.cuda.Device().synchronize()
        graph.upload(s)
        with machine.noting() as calls:
            graph.launch(s)
            s.synchronize()
        assert [kind for kind, _ in calls] == ["graph", "wait"]
        assert out.get() == 5 * (2 * value + 1)
    cp.cuda.Device().synchronize()


@needs_emulator
def test_cupys_cublas_is_captured_through_ctypes(cp: Any) -> None:
    from cupy_backends.cuda.libs import cublas

    library = ctypes.CDLL(cublas.__file__)  # whose functions are those of the cuBLAS that it needs
    s, handle = cp.cuda.Stream(non_blocking=True), cp.cuda.device.get_cublas_handle()
    a, b, c = (cp.zeros(shape, "f") for shape in ((2, 3), (3, 4), (2, 4)))
    cp.cuda.Device().synchronize()
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    x, y, z = (ctypes.c_void_p(array.data.ptr) for array in (b, a, c))
    with s:
        s.begin_capture()
        with pytest.raises(NotImplementedError, match="cuBLAS API during stream capture"):
            a @ b
        assert library.cublasSetStream_v2(ctypes.c_void_p(handle), ctypes.c_void_p(s.ptr)) == 0
        status = library.cublasSgemm_v2(
            ctypes.c_void_p(handle), 0, 0, 4, 2, 3, one, x, 4, y, 3, zero, z, 4
        )
        assert status == 0
        graph = s.end_capture()
    for seed in range(2):
        for array in (a, b):
            array.set(np.random.default_rng(seed).standard_normal(array.shape, "f"))
        cp.cuda.Device().synchronize()
        graph.launch(s)
        s.synchronize()
        assert abs(c.get() - a.get() @ b.get()).max() < 1e-5


@needs_emulator
def test_memory_of_a_graph_that_cupys_pool_gives_back_is_found(cp: Any) -> None:
    s, x, pool = cp.cuda.Stream(non_blocking=True), cp.zeros(5, "f"), cp.cuda.MemoryPool()
    cp.cuda.Device().synchronize()
    with s, cp.cuda.using_allocator(pool.malloc):
        s.begin_capture()
        y = (x + 1) * 2
        graph = s.end_capture()
        graph.launch()
        assert y.get()[0] == 2
        pool.free_all_blocks()  # with that of x + 1, which Python has let go
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="IllegalAddress"):
            [graph.launch(), s.synchronize()]  # the first of them, or the second if work is late
    assert "out of bounds" in machine.problems()[0]


@needs_emulator
def test_cupy_refuses_what_the_host_would_wait_for(cp: Any) -> None:
    s, x = cp.cuda.Stream(non_blocking=True), cp.zeros(5, "f")
    cp.cuda.Device().synchronize()
    with s:
        s.begin_capture()
        for work in (x.get, lambda: float(x[0]), lambda: cp.asarray(np.ones(2)), lambda: x[x > 0]):
            with pytest.raises(RuntimeError, match="the current stream is capturing"):
                work()
        s.end_capture()  # which CuPy's refusals do not harm
        s.begin_capture()
        assert not s.done  # whose error CuPy drops
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="CaptureInvalidated"):
            s.end_capture()
    assert machine.problems() == ["during a capture: a query of a stream that captures"]
