"""What must hold of checkpoints on a disk, whatever is left of it: the promises of
docs/checkpoints.md. They raise AssertionError."""

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from nnmpi.addons.checkpoints import keep, manifest
from nnmpi.addons.checkpoints.keep import PART, STEP
from nnmpi.addons.checkpoints.manifest import Manifest, read_manifest
from nnmpi.addons.checkpoints.read import BlockReader, StoredCheckpoint, newest_of
from nnmpi.addons.checkpoints.schema import DamagedError
from nnmpi.addons.checkpoints.write import Writer, WriteResult
from simulation.case import Case
from simulation.disk import Disk, Tree, write_tree

MEMORY = Path("/dev/shm")


def the_newest_is_taken(directory: Path, written: int) -> StoredCheckpoint | None:
    """What a resumed run takes is whole, the newest that is, and no older than the last one that
    was reported, of step `written`; -1: none was."""
    whole = {step for step, folder in _folders(directory) if _is_whole(folder)}
    try:
        found = newest_of(directory)
    except ValueError as error:
        raise AssertionError(f"nothing can be resumed: {error}") from error
    if found is None:
        assert written < 0, f"the checkpoint of step {written} is gone"
        return None
    assert found.step == max(whole, default=-1), f"step {found.step} is taken, of {whole}"
    assert found.step >= written, f"step {found.step} is taken, though {written} was reported"
    elements_are_there_once(found.manifest)
    return found


def elements_are_there_once(checkpoint: Manifest) -> None:
    """The files of a checkpoint have each element of each array once."""
    times = dict[str, np.ndarray]()
    for x in (x for file in checkpoint.files for x in file.arrays):
        count = times.setdefault(x.name, np.zeros(x.place.shape, int))
        part = np.transpose(count[(*x.place.slices, ...)], x.axes)
        flat = part.reshape(-1)
        flat[x.lo : x.hi] += 1
        part[...] = flat.reshape(part.shape)
    others = [name for name, count in times.items() if (count != 1).any()]
    assert not others, f"elements are missing or there twice: {others}"


def files_are_whole(directory: Path) -> None:
    """Each checkpoint that has its final name can be read, whoever died while it was written, and
    has each element once."""
    by_step = keep.folders(directory) if directory.is_dir() else {}
    for folder in by_step.values():
        try:
            found = read_manifest(folder)
            BlockReader(folder, found).check()
        except DamagedError as error:
            raise AssertionError(f"{folder.name} is torn: {error}") from error
        elements_are_there_once(found)


def _folders(directory: Path) -> list[tuple[int, Path]]:
    found = list[tuple[int, Path]]()
    for name in os.listdir(directory) if directory.is_dir() else ():
        if step := STEP.fullmatch(name):
            found.append((int(step[1]), directory / name))
        elif (part := PART.fullmatch(name)) and part[2]:
            found.append((int(part[2]), directory / name))
    return found


def _is_whole(folder: Path) -> bool:
    try:
        BlockReader(folder, read_manifest(folder)).check()
    except DamagedError:
        return False
    return True


def in_memory() -> "tempfile.TemporaryDirectory[str]":
    """A folder whose files are fast, where there are any."""
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


class Judge:
    """Judges what may be there after a power cut at each operation, each tree once.

    written   the step of the last checkpoint that the run has reported
    check     judges what is in a folder, given that step
    """

    def __init__(self, check: Callable[[Path, int], object]) -> None:
        self.written, self._check = -1, check
        self._parsed = lru_cache(manifest.from_bytes)  # most trees have the same manifests
        self._seen = set[tuple[int, bool, frozenset[tuple[str, bytes | None]]]]()

    def __call__(self, disk: Disk) -> None:
        for i, tree in enumerate(disk.trees()):
            self._judge(tree, is_killed=i == 0)

    def _judge(self, tree: Tree, is_killed: bool) -> None:
        """Without a power cut, whatever has the name of a checkpoint is whole."""
        key = self.written, is_killed, frozenset(tree.items())
        if key in self._seen:
            return
        self._seen.add(key)
        with in_memory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(manifest, "from_bytes", self._parsed)
            write_tree(tree, Path(folder))
            if is_killed:
                for directory in filter(Path.is_dir, Path(folder).iterdir()):
                    files_are_whole(directory)
            self._check(Path(folder), self.written)


class PowerCut:
    """The power is cut after an operation of the disk: whatever may be left is judged.

    left    one of the trees that may be left, by the seed; None before that operation
    error   the promise that one of them breaks
    """

    def __init__(self, case: Case, root: Path, directory: str) -> None:
        self.left: Tree | None = None
        self.error: AssertionError | None = None
        self._case, self._disk = case, Disk(root, self._at_operation)
        self._judge = Judge(lambda left, written: the_newest_is_taken(left / directory, written))

    @contextmanager
    def happens(self) -> Iterator[None]:
        """Lets it happen within the block, unless the case has none."""
        if not self._case.cut:
            yield
            return
        plain = Writer.poll

        def poll(writer: Writer) -> WriteResult | None:
            result = plain(writer)
            if result is not None and not result.problem:
                self._judge.written = result.step
            return result

        with self._disk.followed(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Writer, "poll", poll)
            yield

    def _at_operation(self, disk: Disk) -> None:
        if disk.operations != self._case.cut:
            return
        self.left = random.Random(self._case.seed).choice(disk.trees())
        try:
            self._judge(disk)
        except AssertionError as error:
            self.error = error
