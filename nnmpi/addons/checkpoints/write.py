"""Writes checkpoints of a run while training continues.

    rank 0     start, copy ─ step ─ step ─ poll ──── step ─── poll ─ poll: the result
                 └ write, hash, fsync ───────┘ └ manifest, rename ┘              threads
    rank 1     start, copy ─ step ─ step ─ step ─ poll ─── step ─── poll: the result
                 └ write, hash, fsync ──────────────┘

Threads make no MPI calls. Between steps, ranks exchange messages when their files are written, and
again when rank 0 has renamed the folder.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnmpi.addons.checkpoints.forms import RunFacts
from nnmpi.addons.checkpoints.keep import (
    DirectoryLock,
    check_shared,
    clean,
    folder_of,
    locked,
    make_part,
    part_of,
    remove,
    remove_old,
    replace,
)
from nnmpi.addons.checkpoints.manifest import Manifest, write_manifest
from nnmpi.addons.checkpoints.rank_file import (
    CancelledError,
    FileWritten,
    about_arrays,
    divided,
    laid_out,
    prepared,
    reason_of,
)
from nnmpi.addons.checkpoints.schema import as_json
from nnmpi.arrays import blas, native
from nnmpi.comm import Comm
from nnmpi.io.checkpoints.differences import versions
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.files.atomic import sync
from nnmpi.nn.place import StateArray
from nnmpi.parallel.agreement import all_or_none, gather_objects

T = TypeVar("T")
POLL_SECONDS = 1e-4  # seconds between two polls of a rank that waits
ALGORITHM = "halving"  # its messages need no set-up, so no rank waits when they begin


class WriteResult(NamedTuple):
    """A checkpoint that was written or, if `problem` is not empty, the failed attempt; `seconds`
    count from the start until this rank knew the result."""

    step: int
    folder: Path
    size: int
    seconds: float
    problem: str = ""


class WriteJob(NamedTuple):
    """The content of a checkpoint that is to be written, as one rank knows it.

    snapshot   the Snapshot to write: with this rank's arrays or, after these were copied, without
    written    the slices of arrays that each rank writes, as descriptions without values
    about      on rank 0, the facts about the run as JSON
    log        the path of the run's log
    """

    snapshot: Snapshot
    written: Sequence[Sequence[StateArray]]
    about: Any
    log: str | None


class Writer:
    """Writes checkpoints into a directory; every rank creates a Writer, and calls its methods. The
    `keep` newest ones are kept, and the one with the best value of metric `best`. `waited` is the
    seconds for which training has waited."""

    def __init__(
        self, directory: str | os.PathLike[str], comm: Comm, keep: int = 2, best: str | None = None
    ) -> None:
        self.waited = 0.0
        self._directory, self._keep, self._best = Path(directory), keep, best
        self._writing: Generator[None, None, WriteResult] | None = None
        self._stop, self._naming = threading.Event(), threading.Lock()
        self._lock: DirectoryLock | None = None
        self._comm, self._system = comm, comm.system
        try:
            all_or_none(comm, self._open)
            check_shared(self._directory, comm)
            separate = comm.split(0)  # its messages may travel beside those of training
        except BaseException:
            self.abandon()
            raise
        assert separate is not None
        self._comm = separate

    def _open(self) -> None:
        """Locks the directory, on rank 0."""
        if self._comm.rank == 0:
            self._lock = locked(self._directory)
            clean(self._directory)

    def start(
        self, snapshot: Snapshot, about: RunFacts, log: str | None = None
    ) -> WriteResult | None:
        """Starts to write a checkpoint of `snapshot`. If the checkpoint before is unfinished, waits
        for it, and returns its result; otherwise returns None.

        The arrays that this rank writes are copied first, since later steps change them. `about`,
        used on rank 0, has the facts that the snapshot lacks; if JSON cannot represent them, all
        ranks raise ValueError. The run's log is synced to disk before the checkpoint is complete.
        """
        last, began = self.finish(), self._system.clock()
        of_about = list[np.ndarray]()
        facts = None if self._comm.rank else about
        about_json = all_or_none(self._comm, lambda: facts and as_json(vars(facts), of_about))
        arrays = *snapshot.arrays, *about_arrays(of_about)
        local, problem = [x.on_paper() for x in arrays], self._make_folder(snapshot.state.step)
        of_ranks = gather_objects(self._comm, (local, snapshot.positions, problem))
        ranges_by_rank, positions, problems = zip(*of_ranks, strict=True)
        of_all = snapshot._replace(positions=(*chain.from_iterable(positions),), arrays=arrays)
        content = WriteJob(of_all, divided(ranges_by_rank), about_json, log)
        # max: the same problem on all ranks, if any rank has one
        self._writing = self._steps(content, max(problems), began)
        next(self._writing)
        self.waited += self._system.clock() - began
        return last

    def poll(self) -> WriteResult | None:
        """Returns the result of a checkpoint when it is complete, once, otherwise None; never
        waits. Each rank calls it after each step."""
        if self._writing is None:
            return None
        steps, self._writing = self._writing, None
        try:
            next(steps)
        except StopIteration as end:
            result: WriteResult = end.value
            return result
        self._writing = steps
        return None

    def finish(self) -> WriteResult | None:
        """Waits for the unfinished checkpoint, and returns its result; None if there is none."""
        began, result = self._system.clock(), None
        while self._writing is not None and (result := self.poll()) is None:
            self._system.sleep(POLL_SECONDS)
        self.waited += self._system.clock() - began
        return result

    def close(self) -> WriteResult | None:
        """Waits for the unfinished checkpoint, and unlocks the directory."""
        result = self.finish()
        self._unlock()
        self._comm.free()
        return result

    def abandon(self) -> None:
        """Gives up an unfinished checkpoint and removes its files, without waiting for other ranks,
        of which one was lost or has failed."""
        with self._naming:
            self._stop.set()
        self._writing = None
        if self._lock is not None:
            with suppress(OSError):  # else the next Writer removes them
                clean(self._directory)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ---- steps of a write

    def _make_folder(self, step: int) -> str:
        """Creates the folder of the checkpoint, on rank 0; returns the problem, or ""."""
        if self._lock is not None:
            try:
                make_part(self._directory, step)
            except OSError as error:
                return reason_of(error)
        return ""

    def _steps(
        self, content: WriteJob, problem: str, began: float
    ) -> Generator[None, None, WriteResult]:
        """Writes a checkpoint as a generator, which is advanced between training steps and returns
        the result.

        It yields when this rank's arrays are copied, then whenever it waits for threads or
        messages. `content` is what to write; `problem`, if not empty, says why nothing can be
        written; `began` is the time of the start, by the writer's clock.
        """
        snapshot, files = content.snapshot, list[FileWritten]()
        step = snapshot.state.step
        content = content._replace(snapshot=snapshot._replace(arrays=()))
        if problem:
            yield
        else:
            folder, rank = part_of(self._directory, step), self._comm.rank
            mine = content.written[rank]
            write = prepared(folder, rank, mine, snapshot.arrays, self._stop)
            del snapshot  # its arrays change with the next step: only the copy is used from here
            written = yield from self._result(write)
            del write  # frees the copy
            files = yield from self._gathered(written)
            problem = next(filter(None, (file.problem for file in files)), "")
        ended = FileWritten(problem)
        if self._lock is not None:
            ended = yield from self._result(partial(self._commit, content, files, problem))
        first, *_ = yield from self._gathered(ended)
        seconds = self._system.clock() - began
        return WriteResult(
            step, folder_of(self._directory, step), first.size, seconds, first.problem
        )

    def _result(self, f: Callable[[], T]) -> Generator[None, None, T]:
        """Runs f in a thread and returns its result; yields while f runs."""
        future = self._system.in_thread(f)
        yield
        while not future.done():
            yield
        return future.result()

    def _gathered(self, written: FileWritten) -> Generator[None, None, list[FileWritten]]:
        """Sends the size and digests of this rank's file, `written`, to all ranks; returns those of
        all files. Yields while it waits for messages."""
        comm, data = self._comm, np.frombuffer(json.dumps(written).encode(), np.uint8)
        counts = np.zeros(comm.size, np.int64)
        counts[comm.rank] = len(data)
        work = comm.start_all_gather(counts, ALGORITHM, [1] * comm.size)
        while not work.poll():
            yield
        ends = np.cumsum(counts)
        rows = np.zeros(ends[-1], np.uint8)
        rows[ends[comm.rank] - len(data) : ends[comm.rank]] = data
        work = comm.start_all_gather(rows, ALGORITHM, counts.tolist())
        while not work.poll():
            yield
        return [FileWritten(*json.loads(row.tobytes())) for row in np.split(rows, ends[:-1])]

    def _commit(self, content: WriteJob, files: Sequence[FileWritten], problem: str) -> FileWritten:
        """Completes a checkpoint on rank 0, when all `files` are written: writes the manifest and
        renames the folder, or after a problem removes it. Returns the outcome for all ranks."""
        step = content.snapshot.state.step
        part, folder = part_of(self._directory, step), folder_of(self._directory, step)
        try:
            if not problem:
                manifest = _manifest(content, files)
                if content.log:
                    sync(Path(content.log))
                    sync(Path(content.log).parent)  # its name may be new
                write_manifest(part, manifest)
                with self._not_abandoned():
                    replace(part, folder)
        except (OSError, MemoryError) as error:
            problem = reason_of(error)
        if problem:
            with self._not_abandoned():
                remove(part)
            return FileWritten(problem)
        with suppress(OSError):
            remove_old(self._directory, step, self._keep, self._best)
        return FileWritten("", manifest.size)

    @contextmanager
    def _not_abandoned(self) -> Iterator[None]:
        """Returns a context during which the checkpoint cannot be abandoned; raises CancelledError
        if it was, since another Writer may use the directory by now."""
        with self._naming:
            if self._stop.is_set():
                raise CancelledError
            yield


def _manifest(content: WriteJob, written: Sequence[FileWritten]) -> Manifest:
    """Returns the manifest of a checkpoint with these files."""
    layouts = map(laid_out, range(len(written)), content.written)
    both = zip(layouts, written, strict=True)
    files = tuple(layout._replace(sha256=(*file.blocks,)) for layout, file in both)
    return Manifest(content.snapshot, files, content.about, versions_and_kernels(), time.time())


def versions_and_kernels() -> dict[str, str]:
    """Returns by name the versions of nnmpi, Python and the libraries, and the instruction sets
    that BLAS and the compiled kernels use on this CPU."""
    return {**versions(), "blas": blas.core(), "native": native.INSTRUCTIONS}
