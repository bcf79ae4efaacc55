"""ResumePoint: the checkpoint from which a run continues, after checks that it belongs to the
run."""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nnmpi import addons
from nnmpi.comm import Comm
from nnmpi.io.checkpoints.differences import check_resumable, versions_and_kernels, warnings
from nnmpi.io.checkpoints.keep import check_empty
from nnmpi.io.checkpoints.read import StoredCheckpoint, use_newest
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.files.outputs import LogMark, step_reached
from nnmpi.io.output.pace import PaceCounts
from nnmpi.options.amounts import plural
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run import rank_agreement
from nnmpi.run.setup.objectives import described
from nnmpi.run.setup.setup import Setup


class ResumePoint(NamedTuple):
    """The content of a checkpoint from which a run continues.

    path         the path of the checkpoint
    lines        notes for the user: steps that are repeated, newer checkpoints that are damaged,
                 and what has changed
    passed_over  the notes, among `lines`, on damaged checkpoints
    snapshot     this rank's part of the checkpoint
    is_over      True if the run was complete, and has no more steps now
    total_steps  the number of steps of the run that wrote it
    mark         the length of that run's log, and its end
    pace         the time that the run has taken so far
    callbacks    names and states of the callbacks
    restored     the steps to which `restore` had taken the run, in order
    """

    path: str
    lines: tuple[str, ...]
    passed_over: tuple[str, ...]
    snapshot: Snapshot
    is_over: bool
    total_steps: int
    mark: LogMark | None
    pace: PaceCounts
    callbacks: tuple[tuple[str, Any], ...]
    restored: tuple[int, ...]


def facts_of(setup: Setup) -> dict[str, Any]:
    """Returns facts about a run (data set, loss, functions of the user) that must be the same when
    it is resumed from a checkpoint; equal on all ranks."""
    return {
        "the data set": rank_agreement.digest_of(setup.dataset),
        "standardisation": setup.standardiser.metadata(),
        "functions for options": dict(setup.user_functions),
        "the loss": described(setup.loss),
    }


def try_resume(
    config: Config, directory: str | None, comm: Comm, use: Callable[[StoredCheckpoint], object]
) -> bool:
    """If the config asks to continue from a checkpoint, calls `use` with the newest one in a
    directory; returns True if it did. Every rank calls it.

    Raises ValueError, on all ranks, if there is no checkpoint to continue from, or if the run would
    write into a directory with the checkpoints of another run.
    """
    checkpoint, directory_of_run = None, config.checkpoint_dir
    if directory and (config.resume or addons.chosen("restarts", config)):
        checkpoint = use_newest(directory, comm, use)
        if checkpoint is None and config.resume:
            message = (
                f"there is no checkpoint in {shown(directory)} to resume from: name another "
                "directory, or begin without --resume"
            )
            comm.agree(ValueError(message))
    is_its_own = (
        checkpoint
        and directory_of_run
        and os.path.realpath(directory_of_run) == os.path.realpath(directory or "")
    )
    if directory_of_run and not is_its_own:
        all_or_none(comm, lambda: check_empty(directory_of_run))
    return checkpoint is not None


def resume_point(checkpoint: StoredCheckpoint, setup: Setup) -> ResumePoint:
    """Reads a checkpoint and returns its content; raises ValueError if this run cannot continue
    from it."""
    about, snapshot = checkpoint.about(), checkpoint.snapshot()
    old = {**vars(snapshot.config), **about.facts}
    rest = about.complete, about.total_steps, about.log, about.pace, about.callbacks
    new = {**vars(setup.config), **facts_of(setup)}
    check_resumable(old, new, f"the checkpoint {shown(checkpoint.folder)}")
    lines = (
        *_repeated(setup.config.log, about.log, snapshot.state.step),
        *checkpoint.passed_over,
        *warnings(old, new),
        *_software(checkpoint),
    )
    path, passed_over = str(checkpoint.folder), checkpoint.passed_over
    return ResumePoint(path, lines, passed_over, snapshot, *rest, checkpoint.restored)


def _repeated(log: str | None, mark: LogMark | None, step: int) -> Iterator[str]:
    """Yields a line for the user if the log has steps later than the checkpoint, which the run
    repeats."""
    reached = step_reached(log, mark) if log and mark else 0
    if reached > step:
        again = plural(reached - step, "step")
        yield f"the log had reached step {reached:,}: the run repeats {again}"


def _software(checkpoint: StoredCheckpoint) -> Iterator[str]:
    """Yields a line for the user if versions of libraries or kernels are not those with which the
    checkpoint was made."""
    old, new = checkpoint.manifest.versions, versions_and_kernels()
    others = [
        f"{k} {new.get(k) or 'none'} (was {v or 'none'})" for k, v in old.items() if new.get(k) != v
    ]
    if others:
        yield f"sums may be added in a different order than before, with {', '.join(others)}"
