"""--allreduce nccl on ranks that are threads, each with an emulated device."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, device_count, emulated, needs_emulator
from helpers.training import laws_halves
from helpers.training.on_device import on_device
from helpers.training.pipelined import CNN, MLP, digits, equals, reference, run

from nnmpi import Config, Trainer
from nnmpi.addons.nccl import nccl
from nnmpi.addons.nccl.nccl import NcclComm
from nnmpi.arrays import devices
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.wire import wire_of

pytestmark = needs_emulator  # which has as many devices as there are ranks
xp = DEVICE.xp
N = 37


@pytest.fixture(autouse=True)
def _four_devices() -> Iterator[None]:
    with device_count(4):
        yield


def connected(comm: Comm, **options: Any) -> Any:
    devices.choose(DEVICE, comm.rank)
    layout = Layout.of(Config(**options), comm)
    nccl.connect(layout, DEVICE)
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
        c[own] = b[own]
        there.all_gather(c, parts=parts)
        np.testing.assert_array_equal(c.get(), comm.size * np.arange(N))
        assert work.done


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


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("ranks", "options"), LAYOUTS, ids=str)
def test_layouts_train_as_one_rank(ranks: int, options: dict[str, Any]) -> None:
    alone = {name: value for name, value in options.items() if name not in OF_RANKS}

    def compared(comm: Comm) -> None:
        equals(comm, run(comm, allreduce="nccl", **options), reference(comm, **alone))

    with on_device():
        threads.run(ranks, compared)


@pytest.mark.parametrize("narrow", [False, True])
def test_terms_of_16_bits_are_added_up_in_float32_and_rounded_once(narrow: bool) -> None:
    def sums(comm: Comm) -> list[float]:
        there = connected(comm, reduce_dtype="float16" if narrow else "float32")
        a, b = xp.full((2, 3), 2048.0 if comm.rank == 0 else 1.0, "float16")
        there.all_reduce(a)
        there.start_reduce_scatter(b).wait()
        return [*a.get().tolist(), float(b[comm.rank])]  # 2049 has 12 bits

    assert threads.run(3, sums) == [[2050.0] * 4] * 3 if not narrow else [[2048.0] * 4] * 3


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("ranks", "options", "reduce_dtype"),
    [(3, MLP, "float32"), (3, MLP, "float16"), (2, {**MLP, "zero": 2}, "float32")],
    ids=str,
)
def test_16_bits_train_as_one_rank(ranks: int, options: dict[str, Any], reduce_dtype: str) -> None:
    layout = {"allreduce": "nccl", "reduce_dtype": reduce_dtype}
    layout |= {name: value for name, value in options.items() if name in OF_RANKS}
    alone = {name: value for name, value in options.items() if name not in OF_RANKS}
    case = {**alone, "dtype": "float16"}
    with on_device():
        threads.run(ranks, partial(laws_halves.trains_as_one_rank, layout, case))


@pytest.mark.parametrize("missing", ["lead", "follow"])
def test_a_missing_wait_changes_the_sum(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels for a sum, or of the sum for kernels."""

    def total(comm: Comm) -> float:
        there = connected(comm)
        a = xp.ones(N)
        there.all_reduce(a)
        return float(a.sum())

    with emulated(order="late"):
        assert threads.run(2, total) == [2 * N] * 2
        monkeypatch.setattr(devices.SideStream, missing, lambda *_: None)
        # a device that is fast enough hides it, but not each time
        assert any(threads.run(2, total) != [2 * N] * 2 for _ in range(100))


def test_two_ranks_on_one_gpu_are_refused() -> None:
    words = (
        "allreduce nccl: ranks 0 and 2 share GPU 0 of a node with 3 ranks, and NCCL needs a GPU "
        "for each rank: start as many ranks on a node as it has GPUs, or use --allreduce ring"
    )
    with (
        device_count(2),
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
    "16 bits": (2, "nccl", {"dtype": "float16"}),
    "sums in 16 bits": (2, "nccl", {"dtype": "float16", "reduce_dtype": "float16"}),
    "PipeDream": (2, "ring", {"pp": 2, "schedule": "pipedream", "clip_norm": None}),
}


@pytest.mark.one_in(2)
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
        with device_count(1):
            assert set(threads.run(ranks, taken)) == {"ring"}
