"""Reads the newest intact checkpoint of a directory; blocks are checked when they are read.

step-00001300   a file is shorter than its manifest says   passed over
step-00001200   manifest and sizes are correct             ◄── newest; digests are compared when
                                                               ranks read blocks
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnmpi.addons.checkpoints.forms import RunFacts
from nnmpi.addons.checkpoints.keep import folders, outcomes, undone_by
from nnmpi.addons.checkpoints.manifest import Manifest, read_manifest
from nnmpi.addons.checkpoints.rank_file import BLOCK, is_about
from nnmpi.addons.checkpoints.schema import NAME, DamagedError
from nnmpi.arrays.dtypes import named
from nnmpi.comm import AbortedError, Comm, OtherRankError
from nnmpi.io.checkpoints.differences import OtherRunError
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.nn.place import StateArray
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects

KEPT = 64
"""Blocks that a reader caches, and so the files that it can read in turn without rereading."""


class BlockReader:
    """Reads files of a checkpoint in blocks of 1 MB, checks each against its digest, and keeps the
    last ones: no byte is read twice if the elements of a file are requested in order."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._manifest = manifest
        ranks = {file.name: rank for rank, file in enumerate(manifest.files)}
        self._block = lru_cache(KEPT)(partial(_read, folder, manifest, ranks))

    def elements(self, file: str, x: StateArray, at: int, lo: int, hi: int) -> np.ndarray:
        """Returns elements lo..hi-1 of x at byte `at`; may raise DamagedError."""
        dtype = named(x.dtype)
        values = np.empty(hi - lo, dtype.newbyteorder("<"))
        row, at, done = values.view(np.uint8), at + (lo - x.lo) * dtype.itemsize, 0
        while done < row.size:
            number, start = divmod(at + done, BLOCK)
            part = self._block(file, number)[start : start + row.size - done]
            row[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        return values.astype(dtype, copy=False)

    def check(self) -> None:
        """Raises DamagedError unless all blocks of all files match their digests."""
        for file in self._manifest.files:
            for number in range(len(file.sha256)):
                self._block(file.name, number)


def _read(
    folder: Path, manifest: Manifest, ranks: Mapping[str, int], name: str, number: int
) -> bytes:
    """Reads block `number` of the file `name`; raises DamagedError unless it matches the digest and
    the header in the manifest. `ranks` maps the name of each file to its rank."""
    try:
        with (folder / name).open("rb") as file:  # buffered: read() returns the whole block
            file.seek(number * BLOCK)
            block = file.read(BLOCK)
    except OSError as error:
        raise DamagedError(f"{name}: {error.strerror}") from None
    rank = ranks[name]
    digests = manifest.files[rank].sha256
    if number >= len(digests) or sha256(block).hexdigest() != digests[number]:
        arrays = manifest.files[rank].arrays_in(number * BLOCK, (number + 1) * BLOCK)
        fault = f"block {number} of 1 MB ({shown(arrays)}) does not match its SHA-256"
        raise DamagedError(f"{name} is damaged: {fault}")
    if number == 0:
        header = manifest.files[rank].header[:BLOCK]
        if block[: len(header)] != header:
            ranges = f"manifest.files[{rank}].ranges"
            raise DamagedError(f"{NAME}: {ranges} do not match the header of {name}")
    return block


class StoredCheckpoint(NamedTuple):
    """A checkpoint whose manifest and file sizes are correct; its blocks are checked when they are
    read.

    passed_over   reasons why newer checkpoints were passed over, one text each
    restored      the steps to which `Trainer.restore` had taken the run back: the longest such list
                  in any checkpoint
    """

    folder: Path
    manifest: Manifest
    passed_over: tuple[str, ...] = ()
    restored: tuple[int, ...] = ()

    @property
    def step(self) -> int:
        """The number of steps that the run had made when the checkpoint was written."""
        return self.manifest.step

    def about(self) -> RunFacts:
        """Returns the RunFacts, whose arrays are read from the first file."""
        arrays = (x for x in self._arrays([0]) if is_about(x))
        return self.manifest.about([x.elements().reshape(x.place.shape) for x in arrays])

    def snapshot(self) -> Snapshot:
        """Returns the run's snapshot, equal on all ranks, whose arrays are not read yet. Each rank
        reads the elements that it needs (class `Mover`), and raises DamagedError for a damaged
        block."""
        arrays = (x for x in self._arrays(range(len(self.manifest.files))) if not is_about(x))
        pace = self.about().pace
        norms = pace.norm, pace.norms
        return self.manifest.snapshot._replace(arrays=tuple(arrays), norms=norms)

    def _arrays(self, ranks: Iterable[int]) -> Iterator[StateArray]:
        """Yields the arrays of these ranks' files, which are read and checked when used; by one
        BlockReader, so that a block with parts of several arrays is read once."""
        reader = BlockReader(self.folder, self.manifest)
        for rank in ranks:
            name, _, _, arrays, starts, _ = self.manifest.files[rank]
            for x, at in zip(arrays, starts, strict=True):
                yield x._replace(read=partial(reader.elements, name, x, at), file=name)


def use_newest(
    directory: str | os.PathLike[str],
    comm: Comm,
    use: Callable[[StoredCheckpoint], object],
    restored: Sequence[int] = (),
) -> StoredCheckpoint | None:
    """Calls use(checkpoint) with the newest checkpoint in the directory, and returns it; None,
    without a call, if there is none. Every rank calls it.

    If a rank finds a damaged block as `use` reads arrays, all ranks call `use` again, with the next
    older checkpoint; also if the newest one is of another run, since its manifest was edited if the
    next one is not. `restored` has the steps to which `Trainer.restore` has taken this run back.
    """
    without: dict[int, str] = {}
    of_other_run: BaseException | None = None
    while True:
        try:
            checkpoint = newest(directory, comm, without, restored)
        except (ValueError, OtherRankError) as error:  # on all ranks
            raise of_other_run or error from None
        if checkpoint is None:
            return None
        try:
            use(checkpoint)
            return checkpoint
        except (ValueError, OtherRankError) as error:  # every rank raises one of the two
            is_reason = isinstance(error, DamagedError | OtherRunError)
            problem = (str(error), isinstance(error, OtherRunError)) if is_reason else None
            try:
                problems = [*filter(None, gather_objects(comm, problem))]
            except AbortedError:  # ranks that are threads: another one has gathered and raised
                raise error from None
            if not problems:
                raise
            text, is_other = problems[0]
            if is_other and of_other_run:
                raise of_other_run from None
            of_other_run = error if is_other else of_other_run
            without[checkpoint.step] = text


def newest(
    directory: str | os.PathLike[str],
    comm: Comm,
    without: Mapping[int, str] | None = None,
    restored: Sequence[int] = (),
) -> StoredCheckpoint | None:
    """Returns the newest intact checkpoint in a directory that is not outdated, or None. Every rank
    calls it.

    One is outdated if the run was later restored to an earlier step, in `restored` or as
    checkpoints say. `without` has the reason why those of some steps are damaged. Raises ValueError
    on all ranks if the directory cannot be read, or if ranks do not share it.
    """
    path = Path(directory)

    def look() -> StoredCheckpoint | None:
        return newest_of(path, without or {}, restored) if comm.rank == 0 else None

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


def newest_of(
    directory: Path, without: Mapping[int, str] | None = None, restored: Sequence[int] = ()
) -> StoredCheckpoint | None:
    """Returns the newest usable checkpoint in a directory, or None if it has none; on one rank.
    Those that are damaged, outdated or in `without` are passed over, as in `newest`. Raises
    ValueError if there are only checkpoints that cannot be used."""
    try:
        by_step = folders(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(
            f"cannot read checkpoints in {shown(directory)}: {error.strerror}; make it readable, "
            "or name another directory"
        ) from None
    known, passed_over = outcomes(by_step), list[str]()
    lists = [restored, *(outcome.restored for outcome in known.values())]
    for step, folder in by_step.items():
        try:
            if without and step in without:
                raise DamagedError(without[step])
            manifest = read_manifest(folder)
            back = undone_by(step, manifest.about().restored, lists)
            if back is None:
                latest = max(map(tuple, lists), key=len)
                return StoredCheckpoint(folder, manifest, tuple(passed_over), latest)
            problem = f"`restore` has gone back to step {back:,} since"
        except DamagedError as error:
            problem = str(error)
        passed_over.append(f"{folder.name} is passed over: {problem}")
    if passed_over:
        raise ValueError(
            f"no checkpoint in {shown(directory)} can be used: {'; '.join(passed_over[:3])}"
        )
    return None
