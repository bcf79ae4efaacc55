"""--allreduce nccl, where NCCL is a stand-in for ranks that are threads: one device a rank."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import strictarray
from helpers.device import DEVICE, IS_GPU
from helpers.training import laws_halves
from helpers.training.on_device import on_device
from helpers.training.pipelined import CNN, MLP, digits, equals, reference, run

from nnmpi import Config, Trainer, device
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel import nccl
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.nccl import NcclComm
from nnmpi.parallel.wire import wire_of

pytestmark = pytest.mark.skipif(IS_GPU, reason="NCCL needs as many GPUs as there are ranks")
xp = DEVICE.xp
N = 37


@pytest.fixture(autouse=True)
def _four_devices() -> Iterator[None]:
    with strictarray.cuda.devices(4):
        yield


def connected(comm: Comm) -> Any:
    device.choose(DEVICE, comm.rank)
    layout = Layout.of(Config(), comm)
    nccl.connect(layout, DEVICE, "nccl")
    wire = wire_of(layout.axis["dp"], DEVICE)
    assert isinstance(wire, NcclComm)
    return wire


def collectives(comm: Comm) -> None:
    there, uneven = connected(comm), [N - 3 * (comm.size - 1), *[3] * (comm.size - 1)]
    a = xp.arange(N, dtype="float32")
    there.start(a).wait()
    np.testing.assert_array_equal(a.get(), comm.size * np.arange(N))
    turned = xp.ones((4, 5)).T
    there.all_reduce(turned)
    assert (turned.get() == comm.size).all()
    ends = np.cumsum([0, *uneven])
    for parts, own in (
        (None, comm.chunk(N)),
        (uneven, slice(*ends[comm.rank : comm.rank + 2].tolist())),
    ):
        b, c = xp.arange(N, dtype="float64"), xp.zeros(N)
        work = there.start_reduce_scatter(b, parts=parts)
        work.wait()
        assert work.done
        c[own] = b[own]
        there.all_gather(c, parts=parts)
        np.testing.assert_array_equal(c.get(), comm.size * np.arange(N))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_collectives_are_those_of_the_host(ranks: int) -> None:
    threads.run(ranks, collectives)


LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, CNN),
    (3, {**MLP, "bucket_mb": 0.001}),
    (2, {**CNN, "overlap": False, "clip_norm": 0.1}),
    *((2, {**CNN, "zero": zero, "bucket_mb": 0.01}) for zero in (1, 2, 3)),
    (2, {**MLP, "tp": 2}),
    (4, {**MLP, "tp": 2, "dp": 2, "micro_batches": 2}),
    (4, {**MLP, "pp": 2, "dp": 2, "micro_batches": 2}),
]
OF_RANKS = ("zero", "tp", "pp", "dp", "bucket_mb", "overlap")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("ranks", "options"), LAYOUTS, ids=str)
def test_layouts_train_as_one_rank(ranks: int, options: dict[str, Any]) -> None:
    alone = {name: value for name, value in options.items() if name not in OF_RANKS}

    def compared(comm: Comm) -> None:
        equals(comm, run(comm, allreduce="nccl", **options), reference(comm, **alone))

    with on_device():
        threads.run(ranks, compared)


@pytest.mark.parametrize(("ranks", "options"), [(3, MLP), (2, {**MLP, "zero": 2})], ids=str)
def test_16_bits_train_as_one_rank(ranks: int, options: dict[str, Any]) -> None:
    layout = {"allreduce": "nccl", "reduce_dtype": "float16"}
    layout |= {name: value for name, value in options.items() if name in OF_RANKS}
    alone = {name: value for name, value in options.items() if name not in OF_RANKS}
    case = {**alone, "dtype": "float16"}
    with on_device():
        threads.run(ranks, partial(laws_halves.trains_as_one_rank, layout, case))


def test_a_sum_that_kernels_do_not_wait_for_is_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    def total(comm: Comm) -> float:
        a = xp.ones(N)
        connected(comm).all_reduce(a)
        return float(a.sum())

    assert threads.run(2, total) == [2 * N] * 2
    monkeypatch.setattr(device.SideStream, "lead", lambda self: None)
    assert np.isnan(threads.run(2, total)).all()


def test_a_sum_that_does_not_wait_for_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.SideStream, "follow", lambda self: None)
    with pytest.raises(RuntimeError, match="does not wait for what computes its operands"):
        threads.run(2, lambda comm: connected(comm).all_reduce(xp.ones(N)))


def test_ranks_that_make_other_calls_are_noticed() -> None:
    def sums(comm: Comm) -> None:
        connected(comm).start(xp.ones(N + comm.rank)).wait()

    with pytest.raises(RuntimeError, match=r"ranks have called Call\(name='allReduce', "):
        threads.run(2, sums)


def test_two_ranks_on_one_gpu_are_refused() -> None:
    words = (
        "allreduce nccl: ranks 0 and 2 share GPU 0 of a node with 3 ranks, and NCCL needs a GPU "
        "for each rank: start as many ranks on a node as it has GPUs, or use --allreduce ring"
    )
    with (
        strictarray.cuda.devices(2),
        on_device(),
        pytest.raises(ValueError, match=rf"\A{re.escape(words)}\Z"),
    ):
        threads.run(3, lambda comm: run(comm, allreduce="nccl", **MLP))


def test_on_paper_each_rank_has_a_gpu_of_its_own() -> None:
    assert Cluster.on_paper(4, 2, "cuda").devices == (0, 1, 0, 1)
    assert Cluster.on_paper(2).devices == (None, None)


CHOICES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "several ranks": (2, "nccl", {}),
    "ZeRO": (2, "nccl", {"zero": 2}),
    "tp alone": (2, "nccl", {"tp": 2}),
    "stages alone": (2, "ring", {"pp": 2, "micro_batches": 2}),
    "16 bits": (2, "ring", {"dtype": "float16"}),
    "sums in 16 bits": (2, "nccl", {"dtype": "float16", "reduce_dtype": "float16"}),
    "PipeDream": (2, "ring", {"pp": 2, "schedule": "pipedream", "clip_norm": None}),
}


@pytest.mark.parametrize(("ranks", "wanted", "options"), CHOICES.values(), ids=CHOICES)
def test_auto_takes_it_where_every_rank_has_a_gpu(
    ranks: int, wanted: str, options: dict[str, Any]
) -> None:
    def taken(comm: Comm) -> str:
        config = Config(**{**MLP, "device": "cuda", "batch_size": 24, **options})
        trainer = Trainer(config, data=digits(), comm=comm)
        found = str(trainer.arrangement.algorithm)
        trainer.close()
        return found

    with on_device():
        assert set(threads.run(ranks, taken)) == {wanted}
        with strictarray.cuda.devices(1):
            assert set(threads.run(ranks, taken)) == {"ring"}


def test_auto_takes_a_ring_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strictarray.cuda.nccl, "available", False)
    with on_device():
        threads.run(2, lambda comm: equals(comm, run(comm, **MLP), reference(comm, **MLP)))


def test_equal_parts_take_nccls_own_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[str]()
    add = strictarray.cuda.nccl.NcclCommunicator._add

    def noted(self: Any, call: Any, *others: Any) -> None:
        called.append(call.name)
        add(self, call, *others)

    monkeypatch.setattr(strictarray.cuda.nccl.NcclCommunicator, "_add", noted)

    def sums(comm: Comm) -> None:
        there = connected(comm)
        for parts, n in ((None, 8), ([5, 3], 8)):
            b, c = xp.arange(n, dtype="float32"), xp.zeros(n, "float32")
            there.start_reduce_scatter(b, parts=parts).wait()
            own = slice(*([0, *np.cumsum(parts or [4, 4])][comm.rank : comm.rank + 2]))
            c[own] = b[own]
            there.all_gather(c, parts=parts)
            np.testing.assert_array_equal(c.get(), 2 * np.arange(n))

    threads.run(2, sums)
    assert sorted(called) == sorted(
        ["reduceScatter", "allGather"] * 2 + ["reduce", "broadcast"] * 4
    )


def test_a_job_that_outlives_its_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for ever where a rank is lost: use --allreduce"):
        threads.run(2, connected, fault_tolerant=True)
