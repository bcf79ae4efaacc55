"""The emulated device: threads, memory with bounds, races, launches, streams."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from emulator import build, machine
from emulator.direct import CudaError, DeviceArray, Kernels, Streams, call
from emulator.machine import Options

pytestmark = pytest.mark.usefixtures("as_it_was")

HEAD = """(.param .u64 out, .param .u64 in, .param .u32 n) {
    .reg .b32 %i; .reg .b32 %j; .reg .b32 %v; .reg .b32 %w; .reg .b32 %s;
    .reg .b64 %o; .reg .b64 %x; .reg .b64 %p; .reg .pred %is; .reg .pred %ok;
    .shared .align 4 .b8 all[1024];
    ld.param.u64 %o, [out]; ld.param.u64 %x, [in]; ld.param.u32 %j, [n];
    mov.u32 %i, %tid.x; mul.wide.u32 %p, %i, 4; add.s64 %x, %x, %p; add.s64 %o, %o, %p;
"""
"""Each thread has its number in %i, and the addresses of its numbers in %x and %o."""


def reversing(barrier: str) -> str:
    """Writes the numbers of a block in reverse, through shared memory."""
    return f"""{HEAD}
        ld.global.u32 %v, [%x]; mov.u32 %s, all; shl.b32 %w, %i, 2; add.s32 %w, %w, %s;
        st.shared.u32 [%w], %v; {barrier}
        mov.u32 %w, %ntid.x; sub.s32 %w, %w, 1; sub.s32 %w, %w, %i; shl.b32 %w, %w, 2;
        add.s32 %w, %w, %s; ld.shared.u32 %v, [%w]; st.global.u32 [%o], %v; ret; }}"""


def text(**kernels: str) -> str:
    return "\n".join(f".visible .entry {name}{code}" for name, code in kernels.items())


BEYOND = "mul.wide.u32 %p, %j, 4; add.s64 %{0}, %{0}, %p;"
KERNELS = text(
    reversed=reversing("bar.sync 0;"),
    racing=reversing(""),
    warps_only=reversing("bar.warp.sync -1;"),
    copy=HEAD + "ld.global.u32 %v, [%x]; st.global.u32 [%o], %v; ret; }",
    read_beyond=HEAD + BEYOND.format("x") + "ld.global.u32 %v, [%x]; ret; }",
    write_beyond=HEAD + BEYOND.format("o") + "st.global.u32 [%o], %i; ret; }",
    shared_beyond=HEAD
    + "mov.u32 %s, all; shl.b32 %w, %j, 2; add.s32 %s, %s, %w; st.shared.u32 [%s], %i; ret; }",
    misaligned=HEAD + "ld.global.u32 %v, [%x+2]; ret; }",
    misaligned_pair=HEAD + "ld.global.v2.u32 {%v, %w}, [%x+4]; ret; }",
    one_place=HEAD + "ld.param.u64 %o, [out]; st.global.u32 [%o], %i; ret; }",
    add_up=HEAD + "ld.param.u64 %o, [out]; atom.global.add.u32 %v, [%o], %i; ret; }",
    butterfly=HEAD + """ld.global.u32 %v, [%x];
        shfl.sync.bfly.b32 %w|%ok, %v, 16, 31, -1; add.s32 %v, %v, %w;
        shfl.sync.bfly.b32 %w|%ok, %v, 8, 31, -1; add.s32 %v, %v, %w;
        shfl.sync.bfly.b32 %w|%ok, %v, 4, 31, -1; add.s32 %v, %v, %w;
        shfl.sync.bfly.b32 %w|%ok, %v, 2, 31, -1; add.s32 %v, %v, %w;
        shfl.sync.bfly.b32 %w|%ok, %v, 1, 31, -1; add.s32 %v, %v, %w;
        st.global.u32 [%o], %v; ret; }""",
    down=HEAD + "shfl.sync.down.b32 %w|%ok, %i, 3, 31, -1; st.global.u32 [%o], %w; ret; }",
    up=HEAD + "shfl.sync.up.b32 %w|%ok, %i, 3, 0, -1; st.global.u32 [%o], %w; ret; }",
    index=HEAD + "shfl.sync.idx.b32 %w|%ok, %i, 5, 31, -1; st.global.u32 [%o], %w; ret; }",
    ballot=HEAD
    + "setp.lt.u32 %is, %i, 5; vote.sync.ballot.b32 %w, %is, -1; st.global.u32 [%o], %w; ret; }",
    votes=HEAD
    + """setp.lt.u32 %is, %i, 40; vote.sync.any.pred %ok, %is, -1; selp.b32 %v, 1, 0, %ok;
        vote.sync.all.pred %ok, %is, -1; selp.b32 %w, 2, 0, %ok;
        or.b32 %v, %v, %w; st.global.u32 [%o], %v; ret; }""",
    by_address=HEAD
    + """cvta.to.global.u64 %o, %o; mov.u64 %p, all; cvta.shared.u64 %p, %p;
        st.u32 [%p], %i; cvta.to.shared.u64 %p, %p; ld.shared.u32 %v, [%p];
        st.global.u32 [%o], %v; ret; }""",
    early_end=HEAD + "setp.lt.u32 %is, %i, 5; @%is ret; bar.sync 0; ret; }",
    stuck_warp=HEAD + "setp.lt.u32 %is, %i, 5; @%is ret; bar.warp.sync -1; ret; }",
    asserted=HEAD + "trap; ret; }",
    dynamic=HEAD
    + "mov.u32 %s, more; shl.b32 %w, %j, 2; add.s32 %s, %s, %w; st.shared.u32 [%s], %i; ret; }",
)  # fmt: skip


@pytest.fixture(scope="module")
def kernels(compiler: None) -> Kernels:
    return Kernels(".extern .shared .align 16 .b8 more[];\n" + KERNELS)


def run(kernels: Kernels, name: str, threads: int = 64, n: int = 0, dynamic: int = 0) -> np.ndarray:
    """The numbers that a kernel writes where 0, 10, 20, ... are given."""
    x = DeviceArray(np.arange(threads, dtype="u4") * 10)
    out = DeviceArray(np.zeros(threads, "u4"))
    kernels.launch(name, [out, x, ctypes.c_uint(n)], threads, dynamic=dynamic)
    call("cudaDeviceSynchronize")
    return out.numpy()


def problem(kernels: Kernels, name: str, threads: int = 64, n: int = 0, dynamic: int = 0) -> str:
    """The first thing that goes wrong in a kernel, which CUDA's calls report too."""
    with pytest.raises(CudaError):
        run(kernels, name, threads, n, dynamic)
    return machine.problems()[0]


# ---- threads


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("threads", [1, 33, 256])
def test_shared_memory_with_a_barrier(kernels: Kernels, threads: int, shuffled: bool) -> None:
    machine.set_options(Options(shuffled=shuffled, races=True))
    assert run(kernels, "reversed", threads).tolist() == [*range(0, threads * 10, 10)][::-1]


@pytest.mark.parametrize("name", ["racing", "warps_only"])
def test_a_missing_barrier_is_found(kernels: Kernels, name: str) -> None:
    machine.set_options(Options(races=True, shuffled=True))
    assert f"race in shared memory: kernel {name}, block 0" in problem(kernels, name)


def test_a_barrier_of_the_warp_is_enough_within_it(kernels: Kernels) -> None:
    machine.set_options(Options(races=True))
    assert run(kernels, "warps_only", 32).tolist() == [*range(0, 320, 10)][::-1]


def test_threads_that_write_one_number_are_a_race(kernels: Kernels) -> None:
    machine.set_options(Options(races=True))
    assert "race in global memory" in problem(kernels, "one_place")


def test_atomic_additions_are_none(kernels: Kernels) -> None:
    machine.set_options(Options(races=True, shuffled=True))
    assert run(kernels, "add_up")[0] == sum(range(64))


def test_lanes_exchange_numbers(kernels: Kernels) -> None:
    lanes = np.arange(64)
    first = lanes // 32 * 32
    assert run(kernels, "butterfly").tolist() == [*[4960] * 32, *[15200] * 32]
    assert run(kernels, "down").tolist() == np.where(lanes % 32 < 29, lanes + 3, lanes).tolist()
    assert run(kernels, "up").tolist() == np.where(lanes % 32 > 2, lanes - 3, lanes).tolist()
    assert run(kernels, "index").tolist() == (first + 5).tolist()
    assert run(kernels, "ballot").tolist() == [31] * 32 + [0] * 32
    assert run(kernels, "votes").tolist() == [3] * 32 + [1] * 32


def test_shared_memory_has_addresses_too(kernels: Kernels) -> None:
    assert run(kernels, "by_address", 1).tolist() == [0]


def test_barriers_that_threads_have_left(kernels: Kernels) -> None:
    assert "have ended before a barrier" in problem(kernels, "early_end")
    assert "a barrier of their warp that others do not reach" in problem(kernels, "stuck_warp")


def test_a_failed_assertion_is_an_error(kernels: Kernels) -> None:
    with pytest.raises(CudaError, match="cudaErrorAssert"):
        run(kernels, "asserted", 1)
    assert machine.problems() == ["a trap: kernel asserted, block 0, thread 0"]


# ---- memory


@pytest.mark.parametrize(
    ("name", "n"), [("read_beyond", 1), ("write_beyond", 1), ("read_beyond", -64)]
)
def test_accesses_beyond_an_allocation_are_found(kernels: Kernels, name: str, n: int) -> None:
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        run(kernels, name, n=n & 0xFFFFFFFF)
    access = f"{name.partition('_')[0]} out of bounds of 4 bytes"
    assert access in machine.problems()[0]


def test_accesses_to_freed_memory_are_found(kernels: Kernels) -> None:
    out, x = DeviceArray(np.zeros(64, "u4")), DeviceArray(np.zeros(64, "u4"))
    old = ctypes.c_void_p(x.pointer.value)
    del x
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        kernels.launch("copy", [out, old, ctypes.c_uint(0)], 64)
    assert "read out of bounds" in machine.problems()[0]


def test_shared_memory_has_bounds(kernels: Kernels) -> None:
    run(kernels, "shared_beyond", 1, n=255)
    assert "write beyond shared memory" in problem(kernels, "shared_beyond", 1, n=256)
    run(kernels, "dynamic", 1, n=15, dynamic=64)
    assert "write beyond shared memory" in problem(kernels, "dynamic", 1, n=16, dynamic=64)


def test_addresses_are_aligned(kernels: Kernels) -> None:
    assert "misaligned read of 4 bytes" in problem(kernels, "misaligned", 1)
    assert "misaligned read of 8 bytes" in problem(kernels, "misaligned_pair", 2)


def test_an_error_stays_until_the_problems_are_read(kernels: Kernels) -> None:
    with pytest.raises(CudaError):
        run(kernels, "write_beyond", n=1)
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        run(kernels, "copy")
    machine.problems()
    assert run(kernels, "copy", 2).tolist() == [0, 10]


def test_copies_beyond_an_allocation_are_refused() -> None:
    a, host = DeviceArray(np.zeros(4, "u4")), np.zeros(8, "u4")
    with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
        call("cudaMemcpy", a.pointer, ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(32), 1)
    with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
        call("cudaMemsetAsync", a.pointer, 0, ctypes.c_size_t(17), None)


def test_memory_ends() -> None:
    p = ctypes.c_void_p()
    with pytest.raises(CudaError, match="cudaErrorMemoryAllocation"):
        call("cudaMalloc", ctypes.byref(p), ctypes.c_size_t(1 << 40))


# ---- launches


@pytest.mark.parametrize(
    ("threads", "blocks", "dynamic"),
    [
        (0, 1, 0),
        (1025, 1, 0),
        ((32, 33, 1), 1, 0),
        ((1, 1, 65), 1, 0),
        (1, 0, 0),
        (1, (1, 65536, 1), 0),
        (1, (1, 1, 65536), 0),
        (1, 1, (48 << 10) + 1),
    ],
)
def test_wrong_launches_are_refused(
    kernels: Kernels, threads: int, blocks: int, dynamic: int
) -> None:
    out = DeviceArray(np.zeros(1, "u4"))
    with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
        kernels.launch("copy", [out, out, ctypes.c_uint(0)], threads, blocks, dynamic)
    assert machine.problems() == []


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(CudaError, match="cudaErrorSymbolNotFound"):
        Kernels(text(one=HEAD + "ret; }")).launch("two", [], 1)


# ---- streams


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("order", ["late", "random"])
def test_streams_are_in_order_by_events_alone(kernels: Kernels, order: str, waits: bool) -> None:
    s, wrong = Streams(), 0
    for seed in range(8):
        machine.set_options(Options(order=order, seed=seed))
        x, y, z = (DeviceArray(np.full(8, v, "u4")) for v in (1, 2, 3))
        kernels.launch("copy", [y, x, ctypes.c_uint(0)], 8, stream=s.a)
        if waits:
            call("cudaEventRecord", s.event, s.a)
            call("cudaStreamWaitEvent", s.b, s.event, 0)
        kernels.launch("copy", [z, y, ctypes.c_uint(0)], 8, stream=s.b)
        call("cudaStreamSynchronize", s.b)
        wrong += int(z.numpy()[0] != 1)
    assert (wrong == 0) is waits


@pytest.mark.parametrize("order", ["eager", "late", "random"])
def test_the_null_stream_follows_what_was_issued(kernels: Kernels, order: str) -> None:
    machine.set_options(Options(order=order))
    plain = ctypes.c_void_p()
    call("cudaStreamCreate", ctypes.byref(plain))
    x, y, z = (DeviceArray(np.full(8, v, "u4")) for v in (1, 2, 3))
    kernels.launch("copy", [y, x, ctypes.c_uint(0)], 8, stream=plain)
    kernels.launch("copy", [z, y, ctypes.c_uint(0)], 8)
    assert z.numpy()[0] == 1


def test_late_work_is_done_when_the_host_waits(kernels: Kernels) -> None:
    machine.set_options(Options(order="late"))
    s = Streams()
    x, y = (DeviceArray(np.full(8, v, "u4")) for v in (1, 2))
    kernels.launch("copy", [y, x, ctypes.c_uint(0)], 8, stream=s.a)
    call("cudaEventRecord", s.event, s.a)
    assert machine.library().cudaEventQuery(s.event) == 600  # cudaErrorNotReady
    call("cudaEventSynchronize", s.event)
    assert y.numpy()[0] == 1
    kernels.launch("copy", [x, y, ctypes.c_uint(0)], 8, stream=s.a)
    kernels.launch("copy", [y, x, ctypes.c_uint(0)], 8, stream=s.a)
    assert [machine.library().cudaStreamQuery(s.a) for _ in range(2)] == [600, 0]


def test_what_is_called_is_noted(kernels: Kernels) -> None:
    machine.notes()
    run(kernels, "copy", 4)
    kinds = machine.notes(goes_on=False)
    assert ("kernel", "copy") in kinds
    assert ("copy", "host to device pageable") in kinds
    assert ("wait", "device") in kinds


def test_calls_that_are_not_emulated_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        machine.library().emulator_unknown(b"cudaGraphAddKernelNode") == 801
    )  # cudaErrorNotSupported
    assert machine.problems() == ["cudaGraphAddKernelNode is not emulated"]
    assert "cudaGraphAddKernelNode" in capfd.readouterr().err


@pytest.mark.parametrize("release", ["12", "13"])
def test_cupy_need_not_be_a_wheel(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "cupy_backends" / "cuda" / "libs"
    libraries.mkdir(parents=True)
    (tmp_path / "cupy_backends" / "__init__.py").touch()
    (libraries / "cublas.cpython-311-x86_64-linux-gnu.so").write_bytes(
        f"\0libc.so.6\0libcublas.so.{release}\0".encode()
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cupy_backends", raising=False)
    assert build.cuda_release() == release
