"""Manages the directory of checkpoints: its lock, the removal of old ones, and of killed runs'
files.

step-00001200                a checkpoint
.step-00001300.part          one that is being written, or whose writer was killed
.step-00001200.old.part      one that is being replaced by another of the same step
.shared-HEX.part             a file that ranks look for, to see that they share the directory
.lock                        locked by the run that writes there; the system releases the lock
                             of a process that is killed

The newest K intact checkpoints are kept, and with --keep-best the best one; older ones are removed
once a newer one is on disk. A damaged checkpoint that a resumed run has passed over does not count
among the K. It is removed only after the run has reached its step again.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

from nnmpi.addons.checkpoints.manifest import Outcome, read_manifest, read_outcome
from nnmpi.addons.checkpoints.schema import DamagedError
from nnmpi.comm import Comm
from nnmpi.io.files.atomic import lock, refusing, sync
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects

STEP = re.compile(r"step-(\d{8,})")
PART = re.compile(r"\.(step-(\d{8,})|step-\d{8,}\.old|shared-[0-9a-f]{32})\.part")
LOCK = ".lock"
PATIENCE = 2.0  # seconds to wait for a network file system to show a file, or a process to end

BETTER: dict[str, Callable[[Sequence[float]], float]] = {"test_loss": min, "accuracy": max}
"""By metric, the function that returns its best value, for --keep-best."""


def folder_of(directory: Path, step: int) -> Path:
    """Returns the folder of the checkpoint of a step."""
    return directory / f"step-{step:08d}"


def part_of(directory: Path, step: int) -> Path:
    """Returns the temporary folder in which a step's checkpoint is written."""
    return directory / f".step-{step:08d}.part"


def folders(directory: Path) -> dict[int, Path]:
    """Returns the folders of checkpoints by step, the newest first, intact or not. An intact
    checkpoint whose writer was killed before renaming it takes the place of the one that it was to
    replace."""
    by_step: dict[int, Path] = {}
    for name in sorted(os.listdir(directory), reverse=True):  # names before parts, which win
        if step := STEP.fullmatch(name):
            by_step[int(step[1])] = directory / name
        elif (part := PART.fullmatch(name)) and part[2] and _is_whole(directory / name):
            by_step[int(part[2])] = directory / name
    return {step: by_step[step] for step in sorted(by_step, reverse=True)}


def _is_whole(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except DamagedError:
        return False
    return True


# ---- removal of old checkpoints


def outcomes(by_step: Mapping[int, Path], last: int = sys.maxsize) -> dict[int, Outcome]:
    """Reads the Outcome of each checkpoint up to step `last`, without those with a damaged
    manifest."""
    known: dict[int, Outcome] = {}
    for step, folder in by_step.items():
        if step <= last:
            with suppress(DamagedError):
                known[step] = read_outcome(folder)
    return known


def best_until(directory: Path, step: int, metric: str) -> float | None:
    """Returns the best value of a metric in the intact checkpoints up to a step, also of steps that
    `Trainer.restore` has undone, or None."""
    return best_of(outcomes(folders(directory), step).values(), metric)


def undone_by(step: int, restored: Sequence[int], others: Iterable[Sequence[int]]) -> int | None:
    """Returns None if the checkpoint of `step` still belongs to the run; otherwise the step before
    it, the earliest if there are several, to which `Trainer.restore` later took the run back.

    restored   the steps to which the run had been taken back when the checkpoint was written
    others     lists like `restored`, of other checkpoints and of the run now; a list that is longer
               than `restored` ends with the later restores
    """
    later = chain.from_iterable(other[len(restored) :] for other in others)
    return min((to for to in later if to < step), default=None)


def remove_old(directory: Path, step: int, keep: int, best: str | None) -> None:
    """Removes old checkpoints, after that of `step` was written. Kept are the newest `keep` from
    which the run could resume, and the one with the best value of the metric `best`, if given.

    Those of later steps are neither removed nor counted: they are damaged, or `Trainer.restore` has
    taken the run back to a step before them.
    """
    by_step = folders(directory)
    known = outcomes(by_step, step)
    lists = [outcome.restored for outcome in known.values()]
    known = {other: outcome for other, outcome in known.items() if outcome.is_whole}
    usable = [k for k, of in known.items() if undone_by(k, of.restored, lists) is None]
    kept = {*usable[:keep]}
    if best and (value := best_of(known.values(), best)) is not None:
        kept.add(min(k for k, outcome in known.items() if outcome.metrics.get(best) == value))
    for other, folder in by_step.items():
        if other not in kept and other < step:
            remove(folder)


def best_of(outcomes: Iterable[Outcome], name: str) -> float | None:
    """Returns the best value of a metric in the Outcomes of checkpoints (highest for an accuracy,
    lowest for a loss); None if no checkpoint that has all its files has the metric."""
    intact = (outcome.metrics for outcome in outcomes if outcome.is_whole)
    values = [metrics[name] for metrics in intact if name in metrics]
    return BETTER[name](values) if values else None


def remove(folder: Path) -> None:
    """Removes the folder of a checkpoint. The folder is renamed first, so that an interrupted
    removal leaves no incomplete folder under the name of a checkpoint."""
    hidden = folder.with_name(f".{folder.name}.old.part") if STEP.fullmatch(folder.name) else folder
    with suppress(OSError):
        os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def replace(part: Path, folder: Path) -> None:
    """Renames `part`, the folder of a complete checkpoint, to its final name. An older checkpoint
    of that name is renamed first, and removed once the new name is on disk. After an error both
    have their old names. If the writer is killed between the two renames, `clean` renames `part`
    later."""
    old = folder.with_name(f".{folder.name}.old.part")
    shutil.rmtree(old, ignore_errors=True)  # left by a writer that was killed here
    with suppress(FileNotFoundError):
        os.rename(folder, old)  # no folder can be renamed to one that is not empty
    try:
        os.rename(part, folder)
        sync(folder.parent)
    except OSError:
        for new_name, name in ((folder, part), (old, folder)):
            with suppress(FileNotFoundError):
                os.rename(new_name, name)
        raise
    shutil.rmtree(old, ignore_errors=True)


def make_part(directory: Path, step: int) -> None:
    """Removes what killed writers have left, and creates the folder in which a checkpoint is
    written."""
    clean(directory)
    part_of(directory, step).mkdir()


def clean(directory: Path) -> None:
    """Removes files of killed writers; gives intact checkpoints their name."""
    for name in sorted(os.listdir(directory)):
        if part := PART.fullmatch(name):
            path = directory / name
            with suppress(OSError):  # what cannot be removed does no harm
                if part[2] and _is_whole(path):
                    replace(path, folder_of(directory, int(part[2])))
                elif path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


# ---- the lock


class DirectoryLock(NamedTuple):
    """The lock on a directory to which this run writes; other runs are refused until `release`."""

    path: Path
    file: IO[Any]

    def release(self) -> None:
        """Releases the lock, so that other runs may write there."""
        if not self.file.closed:
            with suppress(OSError):
                self.path.unlink()
            self.file.close()


def locked(directory: Path) -> DirectoryLock:
    """Creates and locks a directory; raises ValueError if this run cannot write there. Waits up to
    PATIENCE seconds for another process that has the lock: it may just have been killed."""
    cannot = f"checkpoint_dir {shown(directory)} cannot be written"
    end = time.monotonic() + PATIENCE
    try:
        if not directory.is_dir():
            directory.mkdir(exist_ok=True)
            sync(directory.parent)
        while (lock := _try_lock(directory / LOCK)) is None:
            if time.monotonic() > end:
                raise ValueError(
                    f"{cannot}: another run writes there; wait until it ends, or name another "
                    "directory"
                )
            time.sleep(PATIENCE / 20)
    except FileExistsError:
        raise ValueError(f"{cannot}: it is not a directory; name another one") from None
    except FileNotFoundError:
        parent = shown(directory.parent)
        raise ValueError(f"{cannot}: there is no directory {parent}; make it first") from None
    except OSError as error:
        raise ValueError(f"{cannot}: {error.strerror}; name another directory") from None
    return lock


def _try_lock(path: Path) -> DirectoryLock | None:
    """Locks the directory; None if another run has locked it, or removed the file."""
    file = path.open("a+b")
    with suppress(BlockingIOError):
        lock(file)
        if is_same(file, path):
            return DirectoryLock(path, file)
    file.close()
    return None


def is_same(file: IO[Any], path: Path) -> bool:
    """True if the path still leads to this open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def check_shared(directory: Path, comm: Comm) -> None:
    """Raises ValueError on all ranks unless they see the same directory; collective."""
    path = directory / gather_objects(comm, f".shared-{uuid4().hex}.part")[0]

    def make() -> None:
        if comm.rank == 0:
            with refusing(directory, "write checkpoints to"):
                path.touch()

    all_or_none(comm, make)
    is_seen = gather_objects(comm, _is_visible(path))
    if comm.rank == 0:
        with suppress(OSError):  # else the next Writer removes it
            path.unlink()
    others = [rank for rank, seen in enumerate(is_seen) if not seen]
    if others:
        ranks = ", ".join(map(str, others[:8])) + ", ..." * (len(others) > 8)
        message = (
            f"checkpoint_dir {shown(directory)} is not shared: rank 0 has written a file there "
            f"that these ranks do not see: {ranks}; name a directory that all ranks share"
        )
        comm.agree(ValueError(message))


def _is_visible(path: Path) -> bool:
    end = time.monotonic() + PATIENCE
    while not os.path.exists(path):  # also False if this rank lacks permission
        if time.monotonic() > end:
            return False
        time.sleep(PATIENCE / 20)
    return True


def check_empty(directory: str | os.PathLike[str]) -> None:
    """Raises ValueError if there are checkpoints, which a new run must not replace."""
    path = Path(directory)
    steps = folders(path) if path.is_dir() else {}
    if steps:
        raise ValueError(
            f"checkpoint_dir {shown(path)} has checkpoints already, the newest of step "
            f"{max(steps)}: --resume continues from there; for a new run name another directory"
        )
