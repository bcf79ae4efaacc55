"""StoredCheckpoint: the newest complete checkpoint of a directory; blocks are checked when read.

step-00001300   a file is shorter than its manifest says   passed over
step-00001200   whole so far: digests are those of blocks  ◄── newest
                that ranks read
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.comm import AbortedError, Comm, OtherRankError
from nnmpi.io.checkpoints.forms import InFile, RunFacts
from nnmpi.io.checkpoints.keep import folders
from nnmpi.io.checkpoints.manifest import Manifest, read_manifest
from nnmpi.io.checkpoints.rank_file import BLOCK
from nnmpi.io.checkpoints.schema import NAME, DamagedError
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.snapshot import FlatValues, ValuesInFile

KEPT = 64
"""Blocks that a reader keeps: of so many files it may read by turns."""


class BlockReader:
    """Reads files of a checkpoint in blocks of 1 MB, each checked; some are kept.

    Who reads the numbers of a file in their order reads no byte twice.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._manifest = manifest
        ranks = {file.name: rank for rank, file in enumerate(manifest.files)}
        self._block = lru_cache(KEPT)(partial(_read, folder, manifest, ranks))

    def numbers(self, file: str, place: InFile, lo: int, hi: int) -> np.ndarray:
        """Numbers lo to hi - 1 of those that begin there; raises DamagedError."""
        dtype = named(place.dtype)
        values = np.empty(hi - lo, dtype.newbyteorder("<"))
        row, at, done = values.view(np.uint8), place.at + lo * dtype.itemsize, 0
        while done < row.size:
            number, start = divmod(at + done, BLOCK)
            part = self._block(file, number)[start : start + row.size - done]
            row[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        return values.astype(dtype, copy=False)

    def check(self) -> None:
        """Raises DamagedError unless all blocks are those that were written."""
        for file in self._manifest.files:
            for number in range(len(file.sha256)):
                self._block(file.name, number)


def _read(
    folder: Path, manifest: Manifest, ranks: Mapping[str, int], name: str, number: int
) -> bytes:
    """A block of a file; raises DamagedError unless it is what its digest and the manifest say."""
    try:
        with (folder / name).open("rb") as file:  # its reads are not cut short
            file.seek(number * BLOCK)
            block = file.read(BLOCK)
    except OSError as error:
        raise DamagedError(f"{name}: {error.strerror}") from None
    rank = ranks[name]
    digests = manifest.files[rank].sha256
    if number >= len(digests) or sha256(block).hexdigest() != digests[number]:
        raise DamagedError(
            f"{name} is damaged: block {number} of 1 MB is not what its SHA-256 says"
        )
    if number == 0:
        header = manifest.rank_file(rank).header[:BLOCK]
        if block[: len(header)] != header:
            ranges = f"manifest.files[{rank}].ranges"
            raise DamagedError(f"{NAME}: {ranges} are not those of the header of {name}")
    return block


class StoredCheckpoint(NamedTuple):
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

    def about(self) -> RunFacts:
        """The facts about the run, with their arrays, which are read."""
        arrays, reader = [], BlockReader(self.folder, self.manifest)
        for array in self.manifest.arrays:
            first, size = self.manifest.files[0].name, math.prod(array.shape)
            row = reader.numbers(first, InFile(array.dtype, array.at), 0, size)
            arrays.append(row.reshape(array.shape))
        return self.manifest.about(arrays)

    def snapshot(self) -> Snapshot:
        """The snapshot, alike on all ranks, of which nothing is read yet: what the ranks had is in
        files, and `Restored` reads of it what a rank needs. That raises DamagedError on a rank that
        reads what was not written.
        """
        reader = BlockReader(self.folder, self.manifest)

        def row(file: str, place: InFile) -> FlatValues:
            return ValuesInFile(file, partial(reader.numbers, file, place))

        files = self.manifest.files
        owned = (saved.map(partial(row, file.name)) for file in files for saved in file.ranges)
        return self.manifest.snapshot._replace(owned=tuple(owned))


def use_newest(
    directory: str | os.PathLike[str], comm: Comm, use: Callable[[StoredCheckpoint], object]
) -> StoredCheckpoint | None:
    """The newest checkpoint that ranks could `use`, or None where there is none; every rank calls
    it.

    Digests are compared when numbers are read: where ranks `use` one and find that it is damaged,
    they use the one before.
    """
    without: dict[int, str] = {}
    while (checkpoint := newest(directory, comm, without)) is not None:
        try:
            use(checkpoint)
            return checkpoint
        except (ValueError, OtherRankError) as error:  # on all ranks, one kind or the other
            problem = str(error) if isinstance(error, DamagedError) else ""
            try:
                problems = [text for text in gather_objects(comm, problem) if text]
            except AbortedError:  # of ranks as threads, others have all texts, and have raised
                raise error from None
            if not problems:
                raise
            without[checkpoint.step] = problems[0]
    return None


def newest(
    directory: str | os.PathLike[str], comm: Comm, without: Mapping[int, str] | None = None
) -> StoredCheckpoint | None:
    """The newest checkpoint that is whole, but those of steps that turned out to be damaged, with
    the reason; None where there is none. Every rank calls it.

    Raises ValueError, on all ranks, if a directory cannot be read, or ranks do not share it.
    """
    path = Path(directory)

    def look() -> StoredCheckpoint | None:
        return newest_of(path, without or {}) if comm.rank == 0 else None

    checkpoint = gather_objects(comm, all_or_none(comm, look))[0]
    if checkpoint is not None:
        sees_folder = gather_objects(
            comm, os.path.isdir(checkpoint.folder)
        )  # False where it may not look
        if not all(sees_folder):
            ranks = [rank for rank, is_there in enumerate(sees_folder) if not is_there]
            message = (
                f"checkpoint_dir {shown(path)} is not shared: rank 0 sees "
                f"{checkpoint.folder.name} in it, and rank {ranks[0]} does not; name a directory "
                "that all ranks share"
            )
            comm.agree(ValueError(message))
    return checkpoint


def newest_of(directory: Path, without: Mapping[int, str]) -> StoredCheckpoint | None:
    """See `newest`; on one rank."""
    try:
        by_step = folders(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(
            f"cannot read checkpoints in {shown(directory)}: {error.strerror}; name another "
            "directory"
        ) from None
    passed_over: list[str] = []
    for step, folder in by_step.items():
        try:
            if step in without:
                raise DamagedError(without[step])
            return StoredCheckpoint(folder, read_manifest(folder), tuple(passed_over))
        except DamagedError as error:
            passed_over.append(f"{folder.name} is passed over: {error}")
    if passed_over:
        raise ValueError(
            f"no checkpoint in {shown(directory)} is whole: {'; '.join(passed_over[:3])}"
        )
    return None


def newest_path(directory: str | None) -> str | None:
    """The path of the newest checkpoint whose manifest verifies, if there is one; on one rank."""
    checkpoint = None
    with suppress(ValueError):  # none is whole
        checkpoint = newest_of(Path(directory), {}) if directory else None
    return str(checkpoint.folder) if checkpoint else None
