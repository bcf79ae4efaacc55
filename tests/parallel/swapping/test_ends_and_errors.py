"""Swapping after a step was broken off, its end without close(), and disks that are too small."""

import errno
import gc
import os
import threading
from typing import Any

import pytest
from helpers.datafiles import refused

from nnmpi import Config, Trainer, native, nn, train
from nnmpi.parallel.arrangement.residence import Residences
from nnmpi.parallel.swapping import arena
from nnmpi.parallel.swapping.arena import Arena
from nnmpi.parallel.swapping.handover import Handover
from nnmpi.parallel.swapping.swapper import Swapper, file_bytes

pytestmark = pytest.mark.skipif(
    native.kernel("arena") is None, reason="there is no arena without compiled kernels on Linux"
)
CASE: dict[str, Any] = {
    "model": "cifar-cnn",
    "data": "synthetic:3x32x32:10:64",
    "batch_size": 24,
    "seed": 3,
    "steps": 2,
    "memory": "28MB",
}


@pytest.mark.parametrize("at", ["passed", "seed"])
def test_a_step_that_was_broken_off_leaves_nothing(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    with Trainer(Config(**CASE)) as trainer:
        with monkeypatch.context() as m:
            m.setattr(Handover, at, broken)
            with pytest.raises(KeyboardInterrupt):
                trainer.fit()
        ended = threading.Thread(target=trainer.fit, daemon=True)
        ended.start()
        ended.join(60)
        assert not ended.is_alive()


def test_a_trainer_that_was_dropped_ends_its_thread() -> None:
    def running() -> int:
        return sum(t.name == "nnmpi-swap" for t in threading.enumerate())

    gc.collect()
    before = running()
    trainer = Trainer(Config(**CASE))
    thread = next(t for t in reversed(threading.enumerate()) if t.name == "nnmpi-swap")
    del trainer
    gc.collect()
    thread.join(10)
    assert running() <= before


def test_an_evaluation_keeps_no_inputs() -> None:
    with Trainer(Config(**CASE)) as trainer:
        trainer.fit()
        swappers = [o for o in gc.get_objects() if isinstance(o, Swapper)]
        assert any(s.borders for s in swappers)
        assert all(b._leaf is None for s in swappers for b in s.borders)


def test_a_file_that_is_refused_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("4.194 MB", "File too large", "TMPDIR"):
        Arena(1 << 22)


def test_a_disk_that_fails_ends_the_run_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = arena._function

    def failing(name: str) -> Any:
        def fails(*_: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        is_swapping = threading.current_thread().name == "nnmpi-swap"
        return fails if name == "end_write" and is_swapping else found(name)

    monkeypatch.setattr(arena, "_function", failing)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in CASE.items()]
    assert train.main([*flags, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nnmpi.train: memory: activations cannot be swapped to a file of")
    assert "Input/output error; make room, or set TMPDIR to another folder" in line


def test_the_fastest_choice_whose_file_has_room_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen() -> float:
        with Trainer(Config(**CASE)) as trainer:
            there = trainer.arrangement.residences
            assert there is not None
            return file_bytes(there.activations, there.in_file)

    monkeypatch.setattr(Residences, "seconds", property(lambda one: -one.in_file))
    monkeypatch.setattr(arena, "MEASURED", 1 << 20)
    longest = chosen()
    monkeypatch.setattr(arena, "free_disk", lambda: longest - 1)
    assert chosen() < longest


def test_a_batch_norm_that_is_used_twice_is_in_one_unit() -> None:
    def build() -> nn.Sequential:
        norm = nn.BatchNorm1d(64)
        ends = nn.Linear(256, 10)
        more = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        first = nn.Flatten(), norm, nn.Linear(64, 64), norm
        return nn.Sequential(*first, *more, ends)

    how: Any = {"batch_size": 1024, "steps": 1, "memory": "3.5MB"}
    with Trainer(Config(**how), build) as trainer:
        assert trainer.arrangement.residences is not None
        trainer.fit()
