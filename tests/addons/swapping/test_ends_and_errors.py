"""Swapping after a step was broken off, its end without close(), and disks that are too small."""

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from helpers.datafiles import refused

from nnmpi import Config, Trainer, nn
from nnmpi.addons.swapping import arena
from nnmpi.addons.swapping.arena import Arena
from nnmpi.addons.swapping.placement import STATE, placements_of
from nnmpi.addons.swapping.swapper import Swapper
from nnmpi.arrays import native
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.transport.base import OtherRankError
from nnmpi.schedules.op import Kind

pytestmark = pytest.mark.skipif(
    native.kernel("arena") is None, reason="there is no arena without compiled kernels on Linux"
)
CASE: dict[str, Any] = {
    "model": "cifar-cnn",
    "data": "synthetic:3x32x32:10:64",
    "batch_size": 24,
    "seed": 3,
    "steps": 2,
    "memory": "26MB",
}


def test_a_trainer_that_was_dropped_ends_its_thread() -> None:
    def running() -> int:
        return sum(t.name == "nnmpi-swap" for t in threading.enumerate())

    gc.collect()
    before = running()
    trainer = Trainer(Config(**CASE))
    thread = next(t for t in reversed(threading.enumerate()) if t.name == "nnmpi-swap")
    del trainer
    gc.collect()
    thread.join(200)
    assert running() <= before


def test_a_strategy_that_is_left_ends_its_thread_and_may_be_closed() -> None:
    with Trainer(Config(**CASE)) as trainer:
        thread = next(t for t in reversed(threading.enumerate()) if t.name == "nnmpi-swap")
        trainer.strategy.leave()
        assert not thread.is_alive()


def test_a_disk_that_is_full_on_one_rank_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made, failed = Arena.__init__, threading.local()

    def full(memory: Arena, nbytes: int) -> None:
        if getattr(failed, "rank", 0) == 1 and nbytes != arena.MEASURED:
            raise ValueError("memory: no space left on device")
        made(memory, nbytes)

    monkeypatch.setattr(arena, "MEASURED", 1 << 20)
    monkeypatch.setattr(Arena, "__init__", full)

    def run(comm: Comm) -> str:
        failed.rank = comm.rank
        with pytest.raises((ValueError, OtherRankError), match="no space left on device") as caught:
            Trainer(Config(**CASE | {"batch_size": 48}), comm=comm)
        return str(caught.value)

    assert len(threads.run(2, run)) == 2


def test_a_file_that_is_refused_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("4.194 MB", "File too large", "TMPDIR"):
        Arena(1 << 22)


def test_a_batch_norm_that_is_used_twice_is_in_one_unit() -> None:
    def build() -> nn.Sequential:
        norm = nn.BatchNorm1d(64)
        ends = nn.Linear(256, 10)
        more = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        first = nn.Flatten(), norm, nn.Linear(64, 64), norm
        return nn.Sequential(*first, *more, ends)

    how: Any = {"batch_size": 1024, "steps": 1, "memory": "3.5MB"}
    with Trainer(Config(**how), build) as trainer:
        assert placements_of(trainer.arrangement) is not None
        trainer.fit()


class SlowDisk:
    """A disk that has read the optimizer state when somebody has waited for it."""

    def __init__(self) -> None:
        self.at, self.loaded = 0, set[int]()

    def move_to(self, stage: int) -> None:
        self.at = stage

    def wait(self, ready: Callable[[], bool]) -> None:
        self.loaded.add(self.at)
        assert ready()


def test_the_update_begins_when_the_optimizer_state_is_in_memory() -> None:
    swapper, disk, found = object.__new__(Swapper), SlowDisk(), list[bool]()
    vars(swapper)["_disk"] = disk
    ends = swapper.with_state({Kind.AGREE: lambda step: found.append(STATE in disk.loaded)})
    ends[Kind.AGREE](0)
    assert found == [True]
