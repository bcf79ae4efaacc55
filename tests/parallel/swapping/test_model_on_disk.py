"""Values, gradients and running sums on disk but for those in use: the same bits."""

import ctypes
import mmap
import os
import resource
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnmpi import Config, Trainer, native
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.transport.base import OtherRankError
from nnmpi.parallel.arrangement.residence import PIECE, Disk, ModelOnDisk, Residence, UnitLoad
from nnmpi.parallel.arrangement.residence import seconds as seconds_of
from nnmpi.parallel.paper.activations import activations
from nnmpi.parallel.paper.memory import memory
from nnmpi.parallel.pipeline.profile import UnitCost
from nnmpi.parallel.planning import residences
from nnmpi.parallel.stores.local import squares
from nnmpi.parallel.swapping import arena
from nnmpi.parallel.swapping.arena import Arena
from nnmpi.parallel.swapping.model_pages import ModelPages
from nnmpi.parallel.swapping.swapper import Swapper

pytestmark = pytest.mark.skipif(
    native.kernel("arena") is None, reason="there is no arena without compiled kernels on Linux"
)
GPT: dict[str, Any] = {
    "model": "gpt:3x2x256",
    "data": "text",
    "context": 8,
    "batch_size": 2,
    "seed": 3,
    "epochs": 1,
}


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MEASURED", 1 << 20)


def needed(trainer: Trainer) -> int:
    a, batch = trainer.arrangement, trainer.config.batch_size
    return memory(a, 0, batch).total + activations(a, 0, batch)


def trained(trainer: Trainer) -> str:
    """The digest after two steps."""
    for _ in islice(trainer.strategy.steps(trainer.train, trainer.state), 2):
        pass
    return trainer.strategy.entries.sha256()


def within(share: float, comm: Comm | None = None, **how: Any) -> tuple[str, Trainer]:
    """The digest of a run with all of the memory, and one in a share of it."""
    with Trainer(Config(**GPT, **how), comm=comm) as plain:
        limit = needed(plain) * share
        digest = trained(plain)
    less = Trainer(Config(**GPT, **how, memory=f"{limit:.0f}B"), comm=comm)
    assert less.arrangement.residences is not None
    assert less.arrangement.residences.model is not None
    assert needed(less) <= limit * 1.001
    return digest, less


@pytest.mark.parametrize(
    "how",
    [
        {"clip_norm": 0.1, "micro_batches": 2},
        {"optimizer": "sgd", "momentum": 0.0, "dtype": "float64"},
    ],
    ids=["adam, clipping, gradients that add up", "sgd, float64"],
)
def test_it_has_the_bits_of_a_run_with_enough_memory(how: dict[str, Any]) -> None:
    digest, less = within(0.7, **how)
    with less:
        assert trained(less) == digest


def test_gradients_that_ranks_sum_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All else is on disk, although gradients lie in the same file."""
    all_pages = list[ModelPages]()
    drop = ModelPages.drop

    def dropped(pages: ModelPages) -> None:
        before = cached(iter([pages._store.flat_grad]))
        drop(pages)
        assert cached(iter([pages._store.flat_grad])) >= before
        all_pages.append(pages)

    monkeypatch.setattr(ModelPages, "drop", dropped)

    def run(comm: Comm) -> tuple[str, str, float]:
        digest, less = within(0.75, comm, allreduce="ring")
        found = less.arrangement.residences
        assert found is not None
        assert found.model is not None
        with less:
            after = trained(less)
            store: Any = less.optimizer.parameters[0].store
            for numbers in (store.flat, store.flat_grad, *less.optimizer.state.values()):
                places = store.pages._arena.places([numbers])
                assert sum(end - start for start, end in places) >= numbers.nbytes
            return digest, after, found.model.gradients

    for wanted, found, gradients in threads.run(2, run):
        assert found == wanted
        assert gradients == 0
    assert all_pages


def cached(arrays: Iterator[np.ndarray]) -> float:
    """The bytes of their pages that are in memory, of this process or in the page cache."""
    found = 0
    for array in arrays:
        start = array.__array_interface__["data"][0]
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        n = -(-(start + array.nbytes - first) // mmap.PAGESIZE)
        pages = (ctypes.c_ubyte * n)()
        size = ctypes.c_size_t(n * mmap.PAGESIZE)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), size, pages) == 0
        found += sum(page & 1 for page in pages) * mmap.PAGESIZE
    return found


def test_only_what_is_in_use_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _, less = within(0.6)
    sums, found = less.optimizer.state, less.arrangement.residences
    assert found is not None
    assert found.model is not None
    behind, there = ModelPages.leave_backward, list[float]()

    def left(pages: ModelPages, s: int) -> None:
        behind(pages, s)
        store = less.optimizer.parameters[0].store
        there.append(cached(iter([store.flat, store.flat_grad, *sums.values()])))

    monkeypatch.setattr(ModelPages, "leave_backward", left)
    with less:
        for _ in islice(less.strategy.steps(less.train, less.state), 3):
            store: Any = less.optimizer.parameters[0].store
            after = cached(iter([store.flat, store.flat_grad, *sums.values()]))
            assert after <= 0.02 * found.model.nbytes
        assert found.model.window < 0.7 * found.model.nbytes
        assert 0 < max(there) <= found.model.window + 16 * mmap.PAGESIZE


def test_running_sums_that_were_read_between_steps_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = {**GPT, "batch_size": 24, "context": 64}
    with Trainer(Config(**case)) as plain:
        limit = needed(plain)
        limit -= memory(plain.arrangement, 0, 24).optimizer // 2
    reduce, there = Swapper._reduce, list[float]()

    def reduced(swapper: Swapper, *args: Any) -> None:
        disk = swapper._disk
        disk.wait(lambda: not disk.jobs and not disk._is_busy)
        there.append(cached(iter(sums.values())))
        reduce(swapper, *args)

    monkeypatch.setattr(Swapper, "_reduce", reduced)
    # slow units, so that none is computed again; by other disks activations go, and no sums
    given = Disk(1e9, 1e9, 1e-9, 1.3e-9)
    monkeypatch.setattr(arena, "measured_disk", lambda: given)
    slow = UnitCost(1.0, 1.0, 1.0, 0, 0, 0)
    monkeypatch.setattr(residences, "profile", lambda *args, **_: [slow] * len(args[2]))
    with Trainer(Config(**case, memory=f"{limit}B")) as less:
        sums, found = less.optimizer.state, less.arrangement.residences
        assert found is not None
        assert found.state > 0
        for _ in islice(less.strategy.steps(less.train, less.state), 3):
            assert all(np.isfinite(array).all() for array in sums.values())
    assert max(there) < 0.1 * found.state


def test_pieces_add_up_to_the_bits_of_the_whole() -> None:
    memory, n = Arena(1 << 23), PIECE + 100_003
    with memory.making(0):
        array = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    pages = ModelPages.__new__(ModelPages)
    pages._arena = memory
    wanted = squares(array.copy())
    assert squares(array, pages) == wanted
    assert cached(iter([array])) < 0.1 * array.nbytes
    twice = array * 2
    for (piece,) in pages.in_turn(array):
        piece *= 2
    np.testing.assert_array_equal(array, twice)
    memory.forget(array[5000:-5000])
    assert not array[6100:-6100].any()
    np.testing.assert_array_equal(array[:5000], twice[:5000])
    np.testing.assert_array_equal(array[-5000:], twice[-5000:])


def test_values_are_read_a_pass_ahead_and_gradients_written_behind() -> None:
    unit = UnitLoad(1.0, 2.0, 1.0, values=1.0, gradients=1.0)
    keep = (Residence.KEEP,) * 3
    fast = seconds_of([unit] * 3, keep, 3.0, Disk(1.0, 1.0))
    # values of 0 until 1, others while passes run, as gradients are written; the last ones behind
    assert fast == 1 + 3 * 1 + 3 * 2 + 1
    assert seconds_of([unit] * 3, keep, 3.0, Disk(1.0, 0.5)) > fast
    assert ModelOnDisk(2.0, 2.0, 4.0, 1.0).seconds(Disk(2.0, 5.0)) == 10 / 5 + 6 / 2


# ---- what fails


def test_a_file_that_cannot_be_kept_open_leaves_no_mapping(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(first := os.dup(file.fileno()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (first, before[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                arena._function("arena")(file.fileno(), 1 << 20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert file.name not in Path("/proc/self/maps").read_text()


def test_a_disk_that_is_full_on_one_rank_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made, failed = Arena.__init__, threading.local()

    def full(memory: Arena, nbytes: int) -> None:
        if getattr(failed, "rank", 0) == 1 and nbytes != arena.MEASURED:
            raise ValueError("memory: no space left on device")
        made(memory, nbytes)

    monkeypatch.setattr(Arena, "__init__", full)

    def run(comm: Comm) -> str:
        failed.rank = comm.rank
        with pytest.raises((ValueError, OtherRankError), match="no space left on device") as caught:
            within(0.75, comm, allreduce="ring")
        return str(caught.value)

    assert len(threads.run(2, run)) == 2


def test_a_strategy_that_is_left_ends_its_thread_and_may_be_closed() -> None:
    _, less = within(0.6)
    thread = next(t for t in reversed(threading.enumerate()) if t.name == "nnmpi-swap")
    with less:
        less.strategy.leave()
        assert not thread.is_alive()
