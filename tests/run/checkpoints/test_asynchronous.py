"""Checkpoints are written while training goes on, whatever happens to ranks meanwhile."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.training.made_checkpoints import made, read, written, written_by_survivors, wrong

from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.checkpoints import rank_file, write
from nnmpi.run.checkpoints.manifest import Manifest
from nnmpi.run.checkpoints.write import Writer
from nnmpi.run.snapshot import Snapshot


def test_no_rank_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any rank: it polls, sends and receives; the next checkpoint waits, and that is counted."""
    slow, real = threading.Event(), rank_file.write_file

    def slowly(path: Path, *arguments: object) -> list[str]:
        if path.parent.name == ".step-00000001.part" and path.name == "rank-00001.safetensors":
            assert slow.wait(60)
        return real(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rank_file, "write_file", slowly)

    def rank(comm: Comm) -> float:
        writer = Writer(tmp_path, comm)
        writer.start(made(comm, 1), {})
        for _ in range(20):
            comm.barrier()
            assert writer.poll() is None
            time.sleep(1e-3)
        before, began = writer.waited, time.perf_counter()
        if comm.rank == 0:
            threading.Timer(0.05, slow.set).start()
        first = writer.start(made(comm, 2), {})
        assert 0.05 <= writer.waited - before <= time.perf_counter() - began
        assert first is not None
        assert (first.step, first.problem) == (1, "")
        second = writer.close()
        assert second is not None
        assert second.step == 2
        return first.seconds

    assert min(threads.run(2, rank)) > 0.05
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000002"]


def test_later_steps_do_not_change_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, real = threading.Event(), rank_file.write_file

    def late(*arguments: object) -> list[str]:
        assert changed.wait(60)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rank_file, "write_file", late)
    writer, now = Writer(tmp_path, comm_self()), made(comm_self(), 1)
    writer.start(now, {})
    for row in (row for one in now.owned for row in (one.values, *one.sums.values())):
        assert isinstance(row, np.ndarray)
        row[...] = -1
    changed.set()
    writer.close()
    _, snapshot = read(comm_self(), tmp_path)
    assert snapshot is not None
    assert wrong([snapshot]) == ""


def test_ranks_hear_of_it_when_they_poll(tmp_path: Path) -> None:
    def rank(comm: Comm) -> None:
        writer = Writer(tmp_path, comm)
        writer.start(made(comm, 1), {})
        end = time.monotonic() + 60
        while (result := writer.poll()) is None:
            assert time.monotonic() < end
            time.sleep(1e-3)
        assert result.step == 1
        assert writer.poll() is None
        assert writer.finish() is None
        writer.close()

    threads.run(3, rank)


def test_a_writer_that_was_abandoned_leaves_the_directory_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written the manifest, and does not give the checkpoint its name once more."""
    is_written, goes_on = threading.Event(), threading.Event()
    real, named = write.write_manifest, list[Path]()

    def slowly(folder: Path, manifest: Manifest) -> None:
        real(folder, manifest)
        is_written.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(write, "write_manifest", slowly)
    monkeypatch.setattr(write, "replace", lambda part, folder: named.append(part))
    writer = Writer(tmp_path, comm_self())
    writer.start(made(comm_self(), 1), {})
    while not is_written.is_set():
        writer.poll()
    (thread,) = (one for one in threading.enumerate() if one.name == "nnmpi checkpoint")
    writer.abandon()
    other = Writer(tmp_path, comm_self())
    goes_on.set()
    thread.join(60)
    assert not named
    other.close()
    found, _ = read(comm_self(), tmp_path)
    assert found is not None
    assert found.step == 1


LONG = [pytest.param(calls, marks=pytest.mark.long) for calls in (20, 80, 160, 320)]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("calls", [1, 110, *LONG])
def test_a_rank_is_lost(victim: int, calls: int, tmp_path: Path) -> None:
    """While a checkpoint is written: those that are left find the one before, and write on."""
    threads.run(3, written, tmp_path, [1])
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
    steps = threads.run(3, rank, fault_tolerant=True, killed={victim: calls})
    assert steps.pop(victim) is None
    assert steps[0] == steps[1] >= max(told)
    assert wrong(snapshots) == ""
