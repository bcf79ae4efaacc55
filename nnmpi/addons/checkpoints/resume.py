"""Opens a session on a checkpoint, after checks that it is this run's."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nnmpi.addons.checkpoints.keep import check_empty
from nnmpi.addons.checkpoints.manifest import RUN
from nnmpi.addons.checkpoints.read import StoredCheckpoint, use_newest
from nnmpi.addons.checkpoints.schema import refused
from nnmpi.addons.checkpoints.write import versions_and_kernels
from nnmpi.comm import Comm
from nnmpi.io.checkpoints.differences import changed_options, check_resumable
from nnmpi.io.files.outputs import LogMark, is_of_run
from nnmpi.options.amounts import plural
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.resume_rules import ResumeEffect
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run import rank_agreement
from nnmpi.run.resume_point import ResumePoint
from nnmpi.run.setup.objectives import described
from nnmpi.run.setup.setup import Setup
from nnmpi.run.training import SUPERVISIONS, Training, open_session


def resuming(config: Config, directory: str | os.PathLike[str]) -> Config:
    """Returns the config of a run that continues from the newest checkpoint in a directory."""
    changes: dict[str, Any] = {"checkpoint_dir": config.checkpoint_dir or os.fspath(directory)}
    return replace(config, resume=True, **changes)  # type: ignore[call-arg]


def open_on(
    trainer: Training, config: Config, comm: Comm, checkpoint: StoredCheckpoint
) -> ResumePoint:
    """Opens a session from a checkpoint, and returns the checkpoint's content."""
    resumed = all_or_none(comm, lambda: resume_point(checkpoint, trainer.setup))
    open_session(trainer, config, comm, resumed.snapshot)
    return resumed


def facts_of(setup: Setup) -> dict[str, Any]:
    """Returns facts about a run (data set, loss, functions of the user) that must be the same when
    it is resumed from a checkpoint; equal on all ranks."""
    return {
        "the data set": rank_agreement.digest_of(setup.dataset),
        "standardisation": setup.standardiser.metadata(),
        "functions for options": dict(setup.user_functions),
        "the loss": described(setup.loss),
    }


def open_on_newest(trainer: Training, config: Config, comm: Comm) -> bool:
    """Opens the first session of a run from the newest checkpoint, if the config asks for it;
    returns True if it did. Every rank calls it. Raises ValueError, on all ranks, if there is none,
    or if the run would write into a directory with another run's checkpoints."""
    checkpoint, directory_of_run = None, config.checkpoint_dir
    directory = os.fspath(trainer.given.resume or directory_of_run)
    if config.resume or SUPERVISIONS.chosen(config):
        checkpoint = use_newest(
            directory,
            comm,
            lambda newest: trainer.run.resume(open_on(trainer, config, comm, newest)),
        )
        if checkpoint is None and config.resume:
            message = (
                f"there is no checkpoint in {shown(directory)} to resume from: name another "
                "directory, or begin without --resume"
            )
            comm.agree(ValueError(message))
    is_its_own = checkpoint and os.path.realpath(directory_of_run) == os.path.realpath(directory)
    if not is_its_own:
        all_or_none(comm, lambda: check_empty(directory_of_run))
    return checkpoint is not None


def resume_point(checkpoint: StoredCheckpoint, setup: Setup) -> ResumePoint:
    """Returns a checkpoint's content; raises ValueError if the run cannot use it."""
    about, snapshot = checkpoint.about(), checkpoint.snapshot()
    old = {**vars(snapshot.config), **about.facts}
    rest = about.complete, about.total_steps, about.log, about.pace, about.callbacks
    new = {**vars(setup.config), **facts_of(setup)}
    check_resumable(old, new, f"the checkpoint {shown(checkpoint.folder)}")
    batch, batches = snapshot.state.batch, len(setup.train)
    if batch >= batches:
        raise refused(f"{RUN}.state.batch", f"{batch:,}, but an epoch has {batches:,}")
    lines = (
        *_repeated(setup.config.log, about.log, snapshot.state.step),
        *checkpoint.passed_over,
        *warnings(old, new),
        *_software(checkpoint),
    )
    path, passed_over = str(checkpoint.folder), checkpoint.passed_over
    return ResumePoint(path, lines, passed_over, snapshot, *rest, checkpoint.restored)


def _repeated(log: str | None, mark: LogMark | None, step: int) -> Iterator[str]:
    """Yields a line if the log has later steps, which are repeated."""
    reached = step_reached(log, mark) if log and mark else 0
    if reached > step:
        again = plural(reached - step, "step")
        yield f"the log had reached step {reached:,}: the run repeats {again}"


def step_reached(log: str, mark: LogMark) -> int:
    """Returns the last step in the log after a checkpoint with this LogMark was written, which a
    resumed run repeats; 0 if there is none, or if the file is the log of another run."""
    steps = [0]
    with suppress(OSError, ValueError):
        if is_of_run(log, mark):
            with open(log, "rb") as file:
                file.seek(mark.size)
                for line in file:  # a run that was killed may have cut off the last one
                    steps.append(json.loads(line).get("step", 0))
    return max(steps)


def warnings(old_run: Mapping[str, Any], new_run: Mapping[str, Any]) -> list[str]:
    """Returns a line for each allowed difference that changes the result."""
    return [
        f"{name} is {shown(new)}, and was {shown(old)} before: {rule.why}"
        for rule, name, old, new in changed_options(old_run, new_run)
        if rule.effect is ResumeEffect.WARNED
    ]


def _software(checkpoint: StoredCheckpoint) -> Iterator[str]:
    """Yields a line if versions or kernels differ from the checkpoint's."""
    old, new = checkpoint.manifest.versions, versions_and_kernels()
    others = [
        f"{k} {new.get(k) or 'none'} (was {v or 'none'})" for k, v in old.items() if new.get(k) != v
    ]
    if others:
        yield f"sums may be added in a different order than before, with {', '.join(others)}"
