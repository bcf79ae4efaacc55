"""Checkpoints are written while training goes on, whatever happens to ranks meanwhile."""

import os
import threading
from pathlib import Path

import pytest
from helpers import turns
from helpers.training.made_checkpoints import (
    about_run,
    made,
    read,
    written,
    written_by_survivors,
    wrong,
)

from nnmpi.addons.checkpoints import rank_file
from nnmpi.addons.checkpoints.write import Writer
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.checkpoints.snapshot import Snapshot


def test_no_rank_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It polls, sends and receives while the file of one rank is written."""
    is_free, real = threading.Event(), rank_file.write_file

    def slowly(*arguments: object) -> list[str]:
        assert is_free.wait(60)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rank_file, "write_file", slowly)

    def rank(comm: Comm) -> None:
        writer = Writer(tmp_path, comm)
        writer.start(made(comm, 1), about_run())
        for _ in range(20):
            comm.barrier()
            assert writer.poll() is None
        comm.barrier()
        is_free.set()
        result = writer.close()
        assert result is not None
        assert (result.step, result.problem) == (1, "")

    threads.run(2, rank)
    assert os.listdir(tmp_path) == ["step-00000001"]


def test_later_steps_do_not_change_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, real = threading.Event(), rank_file.write_file

    def late(*arguments: object) -> list[str]:
        assert changed.wait(60)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rank_file, "write_file", late)
    writer, now = Writer(tmp_path, comm_self()), made(comm_self(), 1)
    writer.start(now, about_run())
    for x in now.arrays:
        x.elements()[...] = -1
    changed.set()
    writer.close()
    _, snapshot = read(comm_self(), tmp_path)
    assert snapshot is not None
    assert wrong([snapshot]) == ""


LONG = [pytest.param(calls, marks=pytest.mark.long) for calls in (20, 80, 160, 320)]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("calls", [1, 110, *LONG])
def test_a_rank_is_lost(victim: int, calls: int, tmp_path: Path) -> None:
    """While a checkpoint is written: those that are left find the one before, and write on."""
    turns.run(3, written, tmp_path, [1])
    told = [1]

    def rank(comm: Comm) -> int:
        rest = written_by_survivors(comm, tmp_path, 2, told)
        Writer(tmp_path, rest).close()
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
        rest.barrier()
        found, snapshot = read(rest, tmp_path)
        assert found is not None
        assert snapshot is not None
        rest.barrier()
        written(rest, tmp_path, [found.step + 1])
        snapshots.append(snapshot)
        return found.step

    snapshots: list[Snapshot] = []
    steps = turns.run(3, rank, fault_tolerant=True, killed={victim: calls})
    assert steps.pop(victim) is None
    assert steps[0] == steps[1] >= max(told)
    assert wrong(snapshots) == ""
