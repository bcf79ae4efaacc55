"""Found: the newest checkpoint of a directory that is whole; and its numbers, checked when read.

step-00001300   a file is shorter than its manifest says   passed over
step-00001200   whole so far: digests are those of blocks  ◄── newest
                that ranks read
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnmpi.comm import Comm
from nnmpi.dtypes import named
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.snapshot import SavedRange
from nnmpi.quoting import shown
from nnmpi.run.checkpoints.keep import folders
from nnmpi.run.checkpoints.manifest import (
    DamagedError,
    InFile,
    Manifest,
    SavedFile,
    read_manifest,
)
from nnmpi.run.checkpoints.rank_file import BLOCK
from nnmpi.run.checkpoints.values import from_json
from nnmpi.run.snapshot import Snapshot


class BlockReader:
    """Reads a file of a checkpoint in blocks, each checked, and the last one kept.

    Who reads in the order of the file reads each byte once.
    """

    def __init__(self, folder: Path, file: SavedFile) -> None:
        self._path, self._file = folder / file.name, file
        self._number, self._block = -1, b""
        self.bytes = 0  # that were read

    def numbers(self, there: InFile, lo: int, hi: int) -> np.ndarray:
        """Numbers lo to hi - 1 of those that begin there; raises DamagedError."""
        dtype = named(there.dtype)
        found = np.empty(hi - lo, dtype)
        row, at = found.view(np.uint8), there.at + lo * dtype.itemsize
        done = 0
        while done < row.size:
            number, start = divmod(at + done, BLOCK)
            part = self._read(number)[start : start + row.size - done]
            row[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        return found.astype(dtype.newbyteorder("="), copy=False)

    def _read(self, number: int) -> bytes:
        if number != self._number:
            try:
                with self._path.open("rb", buffering=0) as file:
                    file.seek(number * BLOCK)
                    block = file.read(BLOCK)
            except OSError as error:
                raise DamagedError(f"{self._file.name}: {error.strerror}") from None
            self.bytes += len(block)
            blocks = self._file.blocks
            if number >= len(blocks) or sha256(block).hexdigest() != blocks[number]:
                raise DamagedError(
                    f"{self._file.name} is damaged: block {number} of 1 MB is not what its SHA-256 "
                    "says"
                )
            self._number, self._block = number, block
        return self._block

    def check(self) -> None:
        """Raises DamagedError unless all blocks are those that were written."""
        for number in range(len(self._file.blocks)):
            self._read(number)


class Found(NamedTuple):
    """A checkpoint that is whole, as far as its manifest and the sizes of its files tell.

    passed_over   what is wrong with newer ones, one text each
    """

    folder: Path
    manifest: Manifest
    passed_over: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The steps that were made."""
        return self.manifest.step

    def about(self) -> dict[str, Any]:
        """What the run has told, with its arrays, which are read."""
        arrays = []
        if self.manifest.arrays:
            reader = BlockReader(self.folder, self.manifest.files[0])
            for one in self.manifest.arrays:
                count = int(np.prod(one.shape, dtype=np.int64))
                arrays.append(reader.numbers(InFile(*one[:2]), 0, count).reshape(one.shape))
        found: dict[str, Any] = from_json(self.manifest.about, arrays)
        return found

    def snapshot(self, comm: Comm) -> Snapshot:
        """The snapshot, with what some of the ranks had: each rank reads files of its own.

        Every rank calls it. Raises DamagedError, on all of them, if one has read what was not
        written.
        """
        owned: list[SavedRange] = []
        problem = ""
        try:
            for file in self.manifest.files[comm.rank :: comm.size]:
                owned += _ranges(BlockReader(self.folder, file), file)
        except DamagedError as error:
            problem = str(error)
        agreed(comm, problem)
        return self.manifest.snapshot._replace(owned=tuple(owned))


def _ranges(reader: BlockReader, file: SavedFile) -> list[SavedRange]:
    """What is in a file, read in its order."""
    values = [reader.numbers(one.values, 0, one.hi - one.lo) for one in file.ranges]
    return [
        SavedRange(
            *(one.place, one.axes, one.lo, one.hi, row, one.steps),
            {name: reader.numbers(there, 0, one.hi - one.lo) for name, there in one.sums.items()},
        )
        for one, row in zip(file.ranges, values, strict=True)
    ]


def agreed(comm: Comm, problem: str) -> None:
    """Raises DamagedError, on all ranks, if one has a problem; every rank calls it."""
    problems = [text for text in gather_objects(comm, problem) if text]
    if problems:
        raise DamagedError(problems[0])


def newest(
    directory: str | os.PathLike[str], comm: Comm, without: Mapping[int, str] | None = None
) -> Found | None:
    """The newest checkpoint that is whole, but those of steps that turned out to be damaged, with
    the reason; None where there is none. Every rank calls it.

    Raises ValueError, on all ranks, if a directory cannot be read, or ranks do not share it.
    """
    path = Path(directory)

    def look() -> Found | None:
        return newest_of(path, without or {}) if comm.rank == 0 else None

    found = gather_objects(comm, all_or_none(comm, look))[0]
    if found is not None:
        there = gather_objects(comm, found.folder.is_dir())
        if not all(there):
            ranks = [rank for rank, is_there in enumerate(there) if not is_there]
            raise ValueError(
                f"checkpoint_dir {shown(path)} is not shared: rank 0 sees "
                f"{found.folder.name} in it, and rank {ranks[0]} does not; name a directory that "
                "all ranks share"
            )
    return found


def newest_of(directory: Path, without: Mapping[int, str]) -> Found | None:
    """See `newest`; on one rank."""
    try:
        there = folders(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(
            f"cannot read checkpoints in {shown(directory)}: {error.strerror}; name another "
            "directory"
        ) from None
    passed_over: list[str] = []
    for step, folder in there.items():
        try:
            if step in without:
                raise DamagedError(without[step])
            return Found(folder, read_manifest(folder), tuple(passed_over))
        except DamagedError as error:
            passed_over.append(f"{folder.name} is passed over: {error}")
    if passed_over:
        raise ValueError(
            f"no checkpoint in {shown(directory)} is whole: {'; '.join(passed_over[:3])}"
        )
    return None
