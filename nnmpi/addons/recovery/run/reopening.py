"""Changes a Trainer after a loss: spare, other layout, back to a checkpoint."""

from contextlib import suppress
from pathlib import Path
from typing import cast

from nnmpi.addons.checkpoints.read import StoredCheckpoint, newest_of, use_newest
from nnmpi.addons.checkpoints.resume import open_on
from nnmpi.addons.recovery.parallel.fitted_layout import FittedLayout
from nnmpi.addons.recovery.run.layouts import fitted, layout_of_job
from nnmpi.addons.recovery.run.run_counters import adopt_checkpoint
from nnmpi.comm import Comm
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.refusals import why_not
from nnmpi.run.callbacks import load_states
from nnmpi.run.session import Session
from nnmpi.run.setup.cutting import UncutModel
from nnmpi.run.training import NoSession, Training, replace_session

SPARE = cast(
    Session,
    NoSession(
        "on this rank, which is spare: the layout has no place for it, so it waits in fit, and "
        "takes part if another rank is lost; where trainer.is_spare is true, call fit only"
    ),
)


def wait(trainer: Training, comm: Comm) -> None:
    """Makes this rank spare: it waits until a session is opened on it."""
    trainer.comm = comm
    replace_session(trainer, SPARE)


def nearest_layout(trainer: Training, comm: Comm) -> FittedLayout:
    """Returns the layout nearest to the user's that is possible for the remaining ranks. The first
    rank that knows the model chooses it; every rank calls it."""
    nearest = all_or_none(comm, lambda: _nearest(trainer, comm.size))
    known = filter(None, gather_objects(comm, nearest))
    return next(known, None) or layout_of_job(trainer.requested, comm)


def _nearest(trainer: Training, ranks: int) -> FittedLayout | None:
    """Returns the nearest layout for so many ranks, or None without a model."""
    if trainer.graph is None:
        return None
    setup, requested = trainer.setup, trainer.requested
    uncut = UncutModel(requested, trainer.graph, setup.loss, setup.dataset, setup.metrics)
    return fitted(requested, ranks, lambda: uncut)


def go_back(trainer: Training, config: Config, comm: Comm, missing: str, were_spare: bool) -> None:
    """Opens a session from the run's newest checkpoint, but for those of steps that `restore` has
    undone. If all these ranks were spare, callbacks load the states that it has.

    Raises ValueError if there is no checkpoint; the message says what is `missing` in memory.
    """

    def use(checkpoint: StoredCheckpoint) -> None:
        resumed = open_on(trainer, config, comm, checkpoint)
        adopt_checkpoint(trainer.run, resumed)
        trainer.checkpoints.go_back(trainer.run.state.step)
        if were_spare:
            all_or_none(comm, lambda: load_states(trainer.callbacks, resumed.callbacks))

    directory = config.checkpoint_dir
    restored = () if were_spare else trainer.run.restored
    if directory is None or use_newest(directory, comm, use, restored) is None:
        where = f"no checkpoint in {shown(directory)}" if directory else "no checkpoint"
        no_backup = trainer.requested.backup is not None or why_not(
            "backup", trainer.requested, comm.size
        )
        remedy = "" if no_backup else "--backup or "
        shorter = "a shorter " if trainer.requested.save_every else ""
        raise ValueError(
            f"there is nothing to continue from: {where} ({missing}); "
            f"next time use {remedy}{shorter}--save-every"
        )


def newest_path(directory: str | None) -> str | None:
    """Returns the path of the newest valid checkpoint, or None; called on one rank."""
    checkpoint = None
    with suppress(ValueError):  # no checkpoint can be used
        checkpoint = newest_of(Path(directory)) if directory else None
    return str(checkpoint.folder) if checkpoint else None
