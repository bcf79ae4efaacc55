"""The libraries beside the driver: cuBLAS, NCCL, CUB and Thrust."""

import ctypes
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulator import captured, machine
from emulator.direct import CudaError, DeviceArray, call
from emulator.machine import Options

pytestmark = pytest.mark.usefixtures("as_it_was")


# ---- cuBLAS

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
F32, F64, TF32 = 68, 70, 77
INVALID_VALUE, NOT_SUPPORTED = 7, 15


def gemm(
    a: np.ndarray, b: np.ndarray, out: str, compute: int = F32, **changed: Any
) -> tuple[int, np.ndarray]:
    """The status, and a @ b by C order: cuBLAS, whose matrices have columns, is asked for b' a'."""
    (m, k), n = a.shape, b.shape[1]
    handle, c = ctypes.c_void_p(), DeviceArray(np.zeros((m, n), out))
    call("cublasCreate_v2", ctypes.byref(handle))
    scalar = ctypes.c_double if compute == F64 else ctypes.c_float
    at = {"lda": n, "ldb": k, "ldc": n, "c": c.pointer, "count": 1, **changed}
    x, y = DeviceArray(b), DeviceArray(a)
    zero, one, none = scalar(0), scalar(1), ctypes.c_longlong(0)
    kinds = [TYPES[array.dtype.name] for array in (b, a, c.like)]
    status = machine.library().cublasGemmStridedBatchedEx(
        handle, 0, 0, n, m, k, ctypes.byref(one), x.pointer, kinds[0], at["lda"], none, y.pointer,
        kinds[1], at["ldb"], none, ctypes.byref(zero), at["c"], kinds[2], at["ldc"], none,
        at["count"], compute, -1,
    )  # fmt: skip
    if machine.remaining_problems():
        raise ValueError("a problem")
    return status, c.numpy()


@pytest.mark.parametrize(
    ("kind", "out", "compute", "close"),
    [
        ("float32", "float32", F32, 1e-6),
        ("float32", "float32", TF32, 2e-3),
        ("float64", "float64", F64, 1e-14),
        ("float16", "float16", F32, 1e-3),
        ("bfloat16", "bfloat16", F32, 1e-2),
        ("bfloat16", "float32", F32, 1e-6),
    ],
)
def test_products(kind: str, out: str, compute: int, close: float) -> None:
    rng = np.random.default_rng(0)
    dtypes = {"bfloat16": ml_dtypes.bfloat16}
    a, b = (rng.standard_normal(s).astype(dtypes.get(kind, kind)) for s in ((5, 70), (70, 3)))
    status, c = gemm(a, b, dtypes.get(out, out), compute)
    assert status == 0
    exact = a.astype("d") @ b.astype("d")
    assert abs(c.astype("d") - exact).max() <= close * abs(exact).max()
    if compute == TF32:
        assert abs(c - exact).max() > 1e-5


@pytest.mark.parametrize(
    ("kind", "compute", "changed", "status"),
    [
        ("float32", F32, {"lda": 2}, INVALID_VALUE),
        ("float32", F32, {"ldb": 69}, INVALID_VALUE),
        ("float32", F32, {"ldc": 0}, INVALID_VALUE),
        ("float32", F32, {"count": -1}, INVALID_VALUE),
        ("float32", F64, {}, NOT_SUPPORTED),
        ("float16", TF32, {}, NOT_SUPPORTED),
        ("float32", 64, {}, NOT_SUPPORTED),
    ],
)
def test_wrong_arguments_of_products(
    kind: str, compute: int, changed: dict[str, int], status: int
) -> None:
    a, b = np.ones((5, 70), kind), np.ones((70, 3), kind)
    assert gemm(a, b, kind, compute, **changed)[0] == status


def test_matrices_are_within_allocations() -> None:
    a, b = np.ones((5, 70), "f"), np.ones((70, 3), "f")
    for changed in ({"ldb": 71}, {"c": ctypes.c_void_p(a.ctypes.data)}):
        with pytest.raises(ValueError, match="a problem"):
            gemm(a, b, "float32", **changed)


# ---- NCCL

INT32, FLOAT16, FLOAT32, BFLOAT16 = 2, 6, 7, 9
SUM, PRODUCT = 0, 1


class Id(ctypes.Structure):
    _fields_ = (("folder", ctypes.c_char * 128),)


def unique_id() -> Id:
    uid = Id()
    call("ncclGetUniqueId", ctypes.byref(uid))
    return uid


class Rank:
    """A rank with a device and a stream of its own."""

    def __init__(self, device: int, size: int, uid: Id, rank: int | None = None) -> None:
        call("cudaSetDevice", device)
        rank = device if rank is None else rank
        self.stream, self.comm = ctypes.c_void_p(), ctypes.c_void_p()
        call("cudaStreamCreateWithFlags", ctypes.byref(self.stream), 1)
        call("ncclCommInitRankConfig", ctypes.byref(self.comm), size, uid, rank, None)

    def all_reduce(self, x: DeviceArray, kind: int = FLOAT32, op: int = SUM) -> None:
        n = ctypes.c_size_t(x.like.size)
        call("ncclAllReduce", x.pointer, x.pointer, n, kind, op, self.comm, self.stream)

    def broadcast(self, x: DeviceArray) -> None:
        n = ctypes.c_size_t(x.like.size)
        call("ncclBroadcast", x.pointer, x.pointer, n, FLOAT32, 1, self.comm, self.stream)

    def result(self, x: DeviceArray) -> np.ndarray:
        call("cudaStreamSynchronize", self.stream)
        return x.numpy()


def on_ranks(size: int, f: Callable[[Rank, int], Any], communicators: int = 1) -> list[Any]:
    """What a function gives on so many threads, each of which is a rank."""
    uids, results = [unique_id() for _ in range(communicators)], [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = f(*(Rank(rank, size, uid) for uid in uids), rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("order", ["eager", "late", "random"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(FLOAT32, "f"), (INT32, "i"), (FLOAT16, "e"), (BFLOAT16, ml_dtypes.bfloat16)],
)
def test_all_reduce(order: str, kind: int, dtype: Any) -> None:
    machine.set_options(Options(order=order, devices=3))

    def f(me: Rank, rank: int) -> list[float]:
        x = DeviceArray(np.arange(5).astype(dtype) + rank)
        me.all_reduce(x, kind)
        return me.result(x).astype("d").tolist()

    assert on_ranks(3, f) == [[3, 6, 9, 12, 15]] * 3


def test_other_operations_than_sums_are_not_emulated() -> None:
    me, x = Rank(0, 1, unique_id()), DeviceArray(np.zeros(2, "f"))
    with pytest.raises(CudaError):
        me.all_reduce(x, op=PRODUCT)
    assert "NCCL's operation other than a sum is not emulated" in machine.problems()


@captured.ORDERS
def test_collectives_of_a_graph_run_at_each_launch_in_the_order_of_others(order: str) -> None:
    machine.set_options(Options(devices=2, order=order))

    def f(me: Rank, rank: int) -> list[float]:
        x, sums = DeviceArray(np.full(2, rank + 1, "f")), list[float]()
        inner = captured.Graph(me.stream)
        me.all_reduce(x)
        inner.end()
        outer = captured.Graph(me.stream)
        inner.launch(me.stream)  # as a part of it
        me.all_reduce(x)
        outer.end()
        for _ in range(2):
            me.all_reduce(x)
            outer.launch(me.stream)
            sums.append(me.result(x)[0])
        return sums

    assert on_ranks(2, f) == [[12, 96]] * 2


def test_a_graph_on_one_rank_only_or_of_another_capture_is_found() -> None:
    machine.set_options(Options(devices=2, patience=5))

    def f(me: Rank, rank: int) -> None:
        x, graphs = DeviceArray(np.zeros(5, "f")), list[captured.Graph]()
        for _ in range(2):
            graphs.append(captured.Graph(me.stream))
            me.all_reduce(x)
            graphs[-1].end()
        graphs[rank].launch(me.stream)
        call("cudaStreamSynchronize", me.stream)

    on_ranks(2, f)
    text = machine.problems()[0]
    for number in (1, 2):
        assert f"root 0, the graphs' call {number}" in text


def test_a_communicator_that_ends_before_its_graphs_is_found() -> None:
    me, x = Rank(0, 1, unique_id()), DeviceArray(np.ones(2, "f"))
    graph = captured.Graph(me.stream)
    me.all_reduce(x)
    graph.end()
    machine.library().ncclCommDestroy(me.comm)
    assert machine.problems()[0].startswith("NCCL: the end of a communicator of which graphs have")


def test_parts_and_roots() -> None:
    machine.set_options(Options(devices=3))

    def f(me: Rank, rank: int) -> list[list[float]]:
        whole, part = (
            DeviceArray(np.arange(6, dtype="f") * (rank + 1)),
            DeviceArray(np.zeros(2, "f")),
        )
        n = ctypes.c_size_t(2)
        call("ncclReduceScatter", whole.pointer, part.pointer, n, FLOAT32, SUM, me.comm, me.stream)
        all_parts = DeviceArray(np.zeros(6, "f"))
        call("ncclAllGather", part.pointer, all_parts.pointer, n, FLOAT32, me.comm, me.stream)
        from_root = DeviceArray(np.full(4, rank, "f"))
        me.broadcast(from_root)
        return [me.result(a).tolist() for a in (part, all_parts, from_root)]

    for rank, (part, whole, from_root) in enumerate(on_ranks(3, f)):
        assert part == [12 * rank, 12 * rank + 6]
        assert whole == [0, 6, 12, 18, 24, 30]
        assert from_root == [1] * 4


def test_calls_of_ranks_that_differ_are_found() -> None:
    machine.set_options(Options(devices=2, patience=5))

    def f(me: Rank, rank: int) -> None:
        x = DeviceArray(np.zeros(5 + rank, "f"))
        me.all_reduce(x)
        me.result(x)

    on_ranks(2, f)
    assert any(
        "all-reduce of 5 numbers" in text and "all-reduce of 6 numbers" in text
        for text in machine.problems()
    )


ORDERS = "NCCL: ranks make calls in orders in which each may wait for another for ever; device "


@pytest.mark.parametrize("streams", ["one stream", "two streams"])
def test_communicators_in_different_orders_are_a_deadlock(streams: str) -> None:
    machine.set_options(Options(devices=2, patience=0.5))

    def f(first: Rank, second: Rank, rank: int) -> None:
        x, y = DeviceArray(np.zeros(5, "f")), DeviceArray(np.zeros(6, "f"))
        if streams == "one stream":
            second.stream = first.stream
        calls = [(first, x), (second, y)]
        for me, array in calls if rank == 0 else reversed(calls):
            me.all_reduce(array)
        first.result(x)

    on_ranks(2, f, communicators=2)
    text = machine.problems()[0]
    assert text.startswith(ORDERS)
    sums = {n: re.escape(f"all-reduce of {n} numbers of type 7, root 0 (nccl-") for n in (5, 6)}
    for device, (n, m) in ((0, (5, 6)), (1, (6, 5))):
        assert re.search(
            rf"device {device} of process \d+ makes {sums[n]}.* before {sums[m]}", text
        )


def test_a_circle_of_four_ranks_of_which_each_two_share_one_communicator_is_found() -> None:
    """Rows 0 1 and 2 3, columns 0 2 and 1 3: rank 0 begins with its row, 1 with its column, ..."""
    machine.set_options(Options(devices=4, patience=0.5))
    rows, columns = [unique_id() for _ in range(2)], [unique_id() for _ in range(2)]

    def f(_: Rank, rank: int) -> None:
        pair = [
            Rank(rank, 2, rows[rank // 2], rank % 2),
            Rank(rank, 2, columns[rank % 2], rank // 2),
        ]
        x = DeviceArray(np.zeros(5, "f"))
        for me in pair if rank in (0, 3) else pair[::-1]:
            me.all_reduce(x)
        pair[0].result(x)

    on_ranks(4, f)
    text = machine.problems()[0]
    assert text.startswith(ORDERS)
    assert text.count(" before ") == 4


def test_a_wait_for_ranks_that_wait_elsewhere_names_their_calls() -> None:
    machine.set_options(Options(devices=2, patience=0.5))

    def f(first: Rank, second: Rank, rank: int) -> None:
        x = DeviceArray(np.zeros(5 + rank, "f"))
        me = (first, second)[rank]
        me.all_reduce(x)
        me.result(x)

    on_ranks(2, f, communicators=2)
    text = machine.problems()[0]
    assert text.startswith("a wait of 0 s: behind NCCL's all-reduce of ")
    for n in (5, 6):
        assert re.search(rf"; device \d of process \d+ has called last all-reduce of {n} ", text)


def test_a_group_that_is_left_open_is_found() -> None:
    machine.set_options(Options(devices=2, patience=5))

    def f(me: Rank, rank: int) -> None:
        x = DeviceArray(np.zeros(5, "f"))
        if rank == 0:
            call("ncclGroupStart")
        me.all_reduce(x)
        me.result(x)

    on_ranks(2, f)
    assert machine.problems()[0].startswith("NCCL: a group is left open, in which all-reduce of 5 ")


def test_two_ranks_on_one_device_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    uid = unique_id()
    comms = [ctypes.c_void_p() for _ in range(2)]
    statuses: list[int] = []

    def join(rank: int) -> None:
        driver = machine.library()
        statuses.append(
            driver.ncclCommInitRankConfig(ctypes.byref(comms[rank]), 2, uid, rank, None)
        )

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [5, 5]  # ncclInvalidUsage
    assert "which use one device" in capfd.readouterr().err


TESTS = str(Path(__file__).parent.parent)
PROCESS = """
import sys
sys.path.insert(0, sys.argv[3])
from emulator import machine
from emulator.machine import Options
from emulator.direct import DeviceArray, call
from emulator.test_libraries import FLOAT32, Id, Rank
import numpy as np
rank, folder = int(sys.argv[1]), sys.argv[2]
machine.library(); machine.set_options(Options(devices=2))
me, x = Rank(rank, 2, Id(folder.encode())), DeviceArray(np.arange(4, dtype="f") + rank)
me.all_reduce(x)
print(me.result(x).tolist(), machine.problems(), flush=True)
input()
call("ncclCommDestroy", me.comm)
"""


def test_ranks_may_be_processes_which_leave_at_one_time() -> None:
    folder = Path(unique_id().folder.decode())
    jobs = [
        subprocess.Popen(
            (sys.executable, "-c", PROCESS, str(r), str(folder), TESTS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    with jobs[0], jobs[1]:
        told = [job.stdout.readline() for job in jobs if job.stdout]
        assert told == ["[1.0, 3.0, 5.0, 7.0] []\n"] * 2
        # each finds that the other has left, and enough files that both remove some
        for name in ("left-0", "left-1", *map(str, range(2000))):
            (folder / name).touch()
        for job in jobs:
            print(file=job.stdin, flush=True)
    assert [job.returncode for job in jobs] == [0, 0]
    assert not folder.exists()


# ---- CUB and Thrust


def library_call(name: str, dtype: Any, *values: Any) -> None:
    numbers = [v.pointer.value if isinstance(v, DeviceArray) else v for v in values]
    arguments = (0, ord(np.dtype(dtype).char), *numbers)
    getattr(machine.library(), name)(*(ctypes.c_int64(v) for v in arguments))


def test_sums_of_float16_are_in_half_precision() -> None:
    x, y = DeviceArray(np.full((2, 4096), 100, "e")), DeviceArray(np.zeros(2, "e"))
    library_call("emulator_reduce", "e", x, y, 2, 4096, 0)
    assert np.isinf(y.numpy()).all()


def test_reductions_and_sorts() -> None:
    x = np.random.default_rng(0).permutation(600).astype("f").reshape(2, 300)
    x[0, 7] = np.nan
    given, ends, places = (
        DeviceArray(x),
        DeviceArray(np.zeros(2, "f")),
        DeviceArray(np.zeros(2, "i8")),
    )
    library_call("emulator_reduce", "f", given, ends, 2, 300, 2)
    assert np.isnan(ends.numpy()[0])
    assert ends.numpy()[1] == x[1].max()
    library_call("emulator_reduce", "f", given, places, 2, 300, 3)
    assert places.numpy().tolist() == [7, x[1].argmin()]
    order = DeviceArray(np.zeros((2, 300), "i8"))
    library_call("emulator_sort", "f", given, order, 2, 300)
    assert order.numpy().tolist() == x.argsort(1, kind="stable").tolist()
    np.testing.assert_array_equal(given.numpy(), np.sort(x, 1))
