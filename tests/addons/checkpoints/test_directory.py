"""The directory of checkpoints: what is kept, what is refused, and what is damaged."""

import hashlib
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.made_checkpoints import about_run, made, read, written, wrong

from nnmpi.addons.checkpoints import keep
from nnmpi.addons.checkpoints.keep import check_empty, folder_of, part_of
from nnmpi.addons.checkpoints.manifest import read_manifest
from nnmpi.addons.checkpoints.read import newest, newest_of, use_newest
from nnmpi.addons.checkpoints.schema import NAME, DamagedError
from nnmpi.addons.checkpoints.write import Writer
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.agreement import all_or_none

LARGE = 150_000  # numbers, in blocks of 1 MB and stretches that are cut


def read_by(ranks: int, directory: Path, n: int = 1000) -> tuple[int, tuple[str, ...]]:
    """The step that so many ranks find, which is as it was written, and what they pass over."""
    results = threads.run(ranks, read, directory)
    found = results[0][0]
    assert found is not None
    assert wrong([snapshot for _, snapshot in results if snapshot is not None], n) == ""
    assert found.about().callbacks[0][1][0].tolist() == [found.step] * 3
    return found.step, found.passed_over


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("n", [1000, LARGE])
def test_any_number_of_ranks_reads_what_others_have_written(
    before: int, after: int, n: int, tmp_path: Path
) -> None:
    threads.run(before, written, tmp_path, [7], n)
    assert read_by(after, tmp_path, n) == (7, ())
    sizes = [path.stat().st_size for path in folder_of(tmp_path, 7).glob("rank-*")]
    assert len(sizes) == before
    if n == LARGE:
        assert max(sizes) < 1.5 * min(sizes)  # the buffer is not cut


@pytest.mark.parametrize("name", [NAME, "rank-00000.safetensors", "rank-00001.safetensors"])
def test_what_is_damaged_is_passed_over(name: str, tmp_path: Path) -> None:
    threads.run(2, written, tmp_path, [1, 2, 3])
    path = folder_of(tmp_path, 3) / name
    content = path.read_bytes()
    for at in (0, len(content) // 2, len(content) - 1):
        flip(path, at)
        step, passed_over = read_by(2, tmp_path)
        assert step == 2
        assert len(passed_over) == 1
        assert "step-00000003 is passed over" in passed_over[0]
        assert name in passed_over[0]
        flip(path, at)
    assert read_by(2, tmp_path) == (3, ())
    for damaged in (content[:-1], content + b" ", None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        assert read_by(1, tmp_path)[0] == 2
    for step in (1, 2):
        shutil.rmtree(folder_of(tmp_path, step))
    with pytest.raises(
        ValueError, match=r"no checkpoint in .* can be used: step-00000003 is passed"
    ):
        newest(tmp_path, comm_self())


def test_what_one_rank_refuses_is_its_error(tmp_path: Path) -> None:
    """Not that of ranks which end because of it; in most of these runs some did, before it."""
    threads.run(1, written, tmp_path, [1])

    def rank(comm: Comm) -> None:
        def refuse() -> None:
            if comm.rank == 0:
                raise ValueError("another model")

        use_newest(tmp_path, comm, lambda _: all_or_none(comm, refuse))

    for _ in range(20):
        with pytest.raises(ValueError, match="another model"):
            threads.run(4, rank)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"format":2', b'"format":3', "version 3 of the format, and nnmpi .* reads version 2"),
        (b'"rank-00000.safetensors"', b'"../secret"', "name is ../secret, not rank-00000.saf"),
        (b",[3],", b",[3000000000000],", r"\[0,3\] is not|not a part|do not match|arrays take"),
        (b'"steps"', b'"stepz"', "unexpected|not an option"),
        (b'"ranks":1', b'"ranks":' + b"[" * 500 + b"]" * 500, "nested too deeply"),
        (b'"ranks":1', b'"ranks":' + b"[" * 99_999 + b"]" * 99_999, "nested too deeply"),
    ],
)
def test_a_manifest_that_another_program_has_written(
    old: bytes, new: bytes, reason: str, tmp_path: Path
) -> None:
    """Its digest is right."""
    threads.run(1, written, tmp_path, [1])
    path = folder_of(tmp_path, 1) / NAME
    content = path.read_bytes()
    body = content[content.index(b'"manifest":') + 11 : -2]
    assert old in body
    body = body.replace(old, new, 1)
    digest = hashlib.sha256(body).hexdigest().encode()
    path.write_bytes(b'{"sha256":"' + digest + b'","manifest":' + body + b"}\n")
    with pytest.raises(DamagedError, match=reason):
        read_manifest(path.parent)


@pytest.mark.parametrize("fault", ["edited", "cut", "swapped"])
def test_damage_is_told_with_the_name_of_an_array(fault: str, tmp_path: Path) -> None:
    def rank(comm: Comm) -> None:
        writer = Writer(tmp_path, comm)
        writer.start(made(comm, 1, LARGE), about_run())
        writer.close()

    threads.run(2, rank)
    first, second = (folder_of(tmp_path, 1) / f"rank-0000{rank}.safetensors" for rank in (0, 1))
    content, other = first.read_bytes(), second.read_bytes()
    at = len(content) - 9
    if fault == "edited":
        first.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif fault == "cut":
        first.write_bytes(content[:at])
    else:
        first.write_bytes(other)
        second.write_bytes(content)
    with pytest.raises(ValueError, match=r"(\(|for )(copies|slices|parts|buffer)"):
        all_elements(tmp_path)


def all_elements(directory: Path) -> None:
    found = newest_of(directory)
    assert found is not None
    for x in found.snapshot().arrays:
        x.elements()


def test_the_newest_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    writer = Writer(tmp_path, comm_self(), keep=2, best="test_loss")
    for step, loss in enumerate([0.5, 0.1, 0.4, 0.3, None], start=1):
        metrics = {} if loss is None else {"test_loss": loss, "accuracy": 1 - loss}
        writer.start(made(comm_self(), step), about_run(metrics=metrics))
    writer.close()
    assert sorted(os.listdir(tmp_path)) == [f"step-0000000{step}" for step in (2, 4, 5)]
    with pytest.raises(ValueError, match="has checkpoints already, the newest of step 5: --resume"):
        check_empty(tmp_path)
    check_empty(tmp_path / "other")


@pytest.mark.parametrize(
    ("restored", "known", "step", "goes_on"),
    [
        ({1: [], 2: [], 3: [], 4: []}, [], 4, []),
        ({1: [], 2: [], 3: [2], 4: []}, [], 3, [2]),  # the run had made step 4 before
        ({1: [], 2: [], 3: [], 4: []}, [2], 2, [2]),  # it has written nothing since
        ({1: [], 2: [], 3: [2], 4: [2, 3]}, [2, 3], 4, [2, 3]),
        ({1: [], 2: [], 3: [2], 4: [2]}, [2, 3], 3, [2, 3]),
        ({1: [], 2: [], 5: [2], 7: [2, 6]}, [], 7, [2, 6]),  # on to a later step
        ({1: [2], 3: []}, [], 1, [2]),
    ],
)
def test_steps_that_a_restore_has_undone_are_passed_over(
    restored: dict[int, list[int]], known: list[int], step: int, goes_on: list[int], tmp_path: Path
) -> None:
    writer = Writer(tmp_path, comm_self(), keep=9)
    for other, steps in sorted(
        restored.items(), key=lambda item: item[0] in {3, 4} and not item[1]
    ):
        writer.start(made(comm_self(), other), about_run(restored=tuple(steps)))
    writer.close()
    found = newest(tmp_path, comm_self(), None, known)
    assert found is not None
    assert (found.step, [*found.restored]) == (step, goes_on)
    undone = [other for other in restored if other > step]
    assert len(found.passed_over) == len(undone)
    assert all("`restore` has gone back to step 2 since" in text for text in found.passed_over[1:])
    for other in restored:
        about = read_manifest(folder_of(tmp_path, other)).about()
        assert [*about.restored] == restored[other]


def test_a_restore_counts_though_the_checkpoint_that_tells_of_it_is_short(tmp_path: Path) -> None:
    writer = Writer(tmp_path, comm_self(), keep=9)
    for step, restored in ((1, ()), (2, ()), (4, ()), (3, (2,))):
        writer.start(made(comm_self(), step), about_run(restored=restored))
    writer.close()
    file = folder_of(tmp_path, 3) / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    found = newest(tmp_path, comm_self())
    assert found is not None
    assert (found.step, found.restored) == (2, (2,))


def test_undone_ones_are_left_until_the_run_is_past_them(tmp_path: Path) -> None:
    """And take no place of those to keep; but the best one is kept."""
    writer = Writer(tmp_path, comm_self(), keep=2, best="test_loss")
    losses = {2: 0.2, 3: 0.1, 5: 0.4}
    for step, loss in losses.items():
        writer.start(made(comm_self(), step), about_run(metrics={"test_loss": loss}))
    for step, left in ((2, (2, 3, 5)), (4, (2, 3, 4, 5)), (6, (3, 4, 6))):
        writer.start(made(comm_self(), step), about_run(restored=(1,)))
        writer.finish()
        assert sorted(os.listdir(tmp_path)) == [".lock", *(f"step-0000000{n}" for n in left)]
    writer.close()


def test_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    threads.run(1, written, tmp_path, [1, 2])
    flip(folder_of(tmp_path, 2) / NAME, 100)
    threads.run(2, written, tmp_path, [2])
    assert read_by(1, tmp_path) == (2, ())
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000002"]


def test_one_that_is_not_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one has its name, which cannot be synced to the disk."""
    plain = keep.sync

    def fails(path: Path) -> None:
        if path == tmp_path:
            raise OSError(5, "Input/output error")
        plain(path)

    writer, told = Writer(tmp_path, comm_self()), []
    for i in range(2):
        writer.start(made(comm_self(), 1), about_run([np.full(3, i)]))
        told.append(writer.finish())
        monkeypatch.setattr(keep, "sync", fails)
    writer.close()
    assert [result and result.problem.partition(": ")[2] for result in told] == [
        "",
        "Input/output error",
    ]
    assert os.listdir(tmp_path) == ["step-00000001"]
    found, _ = read(comm_self(), tmp_path)
    assert found is not None
    assert found.about().callbacks[0][1][0].tolist() == [0, 0, 0]


def test_what_killed_writers_have_left_is_removed(tmp_path: Path) -> None:
    """But a checkpoint that has all but its name gets that, and is found before, too."""
    threads.run(1, written, tmp_path, [1, 2, 3])
    os.rename(folder_of(tmp_path, 3), part_of(tmp_path, 3))
    os.rename(folder_of(tmp_path, 2), part_of(tmp_path, 2))
    (part_of(tmp_path, 2) / NAME).unlink()
    (tmp_path / f".shared-{'a' * 32}.part").touch()
    (tmp_path / ".step-00000001.old.part").mkdir()
    (tmp_path / ".mine.part").touch()
    (tmp_path / ".lock").touch()
    assert read_by(1, tmp_path)[0] == 3
    Writer(tmp_path, comm_self()).close()
    assert sorted(os.listdir(tmp_path)) == [".mine.part", "step-00000001", "step-00000003"]


@pytest.mark.parametrize("failing", ["pwrite", "fsync", "rename", "mkdir"])
def test_what_cannot_be_written_is_told_on_all_ranks(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left; the next one is written."""

    works, fails = getattr(os, failing), threading.Event()

    def full(*arguments: object, **options: object) -> Any:
        if fails.is_set():
            raise OSError(28, "No space left on device")
        return works(*arguments, **options)

    monkeypatch.setattr(os, failing, full)

    def rank(comm: Comm) -> tuple[str, str]:
        writer = Writer(tmp_path, comm)
        fails.set()
        writer.start(made(comm, 1), about_run())
        first = writer.finish()
        fails.clear()
        comm.barrier()
        writer.start(made(comm, 2), about_run())
        second = writer.close()
        assert first is not None
        assert second is not None
        return first.problem, second.problem

    for first, second in threads.run(2, rank):
        assert first.endswith("No space left on device")
        assert not second
    assert os.listdir(tmp_path) == ["step-00000002"]


def test_an_abandoned_one_leaves_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, comm_self())
    writer.start(made(comm_self(), 1), about_run())
    file = part_of(tmp_path, 1) / "rank-00000.safetensors"
    while not file.exists():  # a thread writes it
        time.sleep(1e-4)
    writer.abandon()
    assert os.listdir(tmp_path) == []


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    state = {"rate": np.float32(0.1), "table": np.arange(5.0), "betas": (0.9, np.inf), "n": [1]}
    writer = Writer(tmp_path, comm_self())
    writer.start(made(comm_self(), 1), about_run(state))
    assert writer.close() is not None
    found, _ = read(comm_self(), tmp_path)
    assert found is not None
    held = found.about().callbacks[0][1]
    assert held.pop("table").tolist() == [0, 1, 2, 3, 4]
    assert str(held) == "{'rate': np.float32(0.1), 'betas': (0.9, inf), 'n': [1]}"


def test_what_a_checkpoint_cannot_hold(tmp_path: Path) -> None:
    writer = Writer(tmp_path, comm_self())
    for value, reason in {object(): "object", 1j: "complex", (): ""}.items():
        if reason:
            with pytest.raises(ValueError, match=f"a checkpoint cannot hold .*{reason}"):
                writer.start(made(comm_self(), 1), about_run({"state": value}))
    for array in (np.zeros(2, complex), np.array(["a"]), np.array([None])):
        with pytest.raises(ValueError, match=f"a checkpoint cannot hold an array of {array.dtype}"):
            writer.start(made(comm_self(), 1), about_run(array))
    with pytest.raises(ValueError, match="with keys that are not strings"):
        writer.start(made(comm_self(), 1), about_run({1: np.zeros(2)}))
    writer.close()
