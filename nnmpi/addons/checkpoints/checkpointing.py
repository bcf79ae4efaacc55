"""RunCheckpoints: writes the checkpoints of a run when they are due, is suspended, or ends.

    --save-every N          after steps N, 2 N, ...: all ranks know without a message
                 Ns         by the clock of rank 0, whose request travels with the gradients
                 N epochs   after the evaluation, as with --keep-best
    SIGUSR1, --time-limit   a rank requests the end, and all write a checkpoint of the same step

If ranks take their steps at different times, all checkpoints wait for the end of an epoch.
"""

import os
import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np

from nnmpi.addons.checkpoints.forms import RunFacts
from nnmpi.addons.checkpoints.keep import BETTER, best_until
from nnmpi.addons.checkpoints.resume import facts_of, open_on_newest
from nnmpi.addons.checkpoints.save_times import SaveTimes, read_every
from nnmpi.addons.checkpoints.write import Writer, WriteResult
from nnmpi.comm import Comm, OtherRankError
from nnmpi.io.files.atomic import NotSavedError
from nnmpi.io.output import Event
from nnmpi.metrics import ACCURACY, Metric
from nnmpi.nn.losses import ClassLoss
from nnmpi.nn.parameter import Parameter
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.model.state import first_names, module_state
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.step.objective import Criterion
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.callbacks import states_of
from nnmpi.run.session import Session
from nnmpi.run.setup import models
from nnmpi.run.training import Checkpoints, RunParts, Training

ALL = sys.maxsize
"""Checkpoints to keep where the user asks for each one: all."""


def check_best(config: Config, loss: Criterion, metrics: Mapping[str, Metric]) -> None:
    """Raises ValueError if --keep-best names a metric that is not measured."""
    best = config.keep_best
    if best == ACCURACY and not (isinstance(loss, ClassLoss) or ACCURACY in metrics):
        raise ValueError(
            f"keep_best {ACCURACY}: {type(loss).__name__} has none, and no metric "
            f"has this name; keep the best test_loss, or give metrics={{'{ACCURACY}': ...}}"
        )


class UnusableDirectoryError(AgreedError, ValueError):
    """Ends a run because it cannot write to the directory for checkpoints in the config."""


class RunCheckpoints(Checkpoints):
    """Writes the checkpoints of a run, if it has a directory for them. Every rank calls the
    methods, between the same steps.

    newest   the step of the newest checkpoint that was written and reported, unless the run went
             back to an earlier step; -1: none
    """

    newest = -1
    _written = 0  # checkpoints that this run has reported
    _pending_step = -1  # of the checkpoint that is being written, unless the run went back
    _reported = -1  # checkpoints up to this step were reported before a rank was lost
    _writer: Writer | None = None  # while `fit` runs

    def __init__(self, trainer: Training) -> None:
        self._config, self._run = trainer.setup.config, trainer.run
        self._facts = cache(partial(facts_of, trainer.setup))  # compared when the run is resumed
        self._callbacks = trainer.callbacks  # a checkpoint stores the state of each that has one
        self._times = SaveTimes(self._config, trainer.began, trainer.comm.system.clock)
        self._best: float | None = None

    @property
    def are_written(self) -> bool:
        """True if this run writes checkpoints: its config has a directory for them."""
        return bool(self._config.checkpoint_dir)

    def begin(self, comm: Comm) -> None:
        """Prepares to write checkpoints of a run to the directory in its config."""
        config, self._is_first = self._config, comm.rank == 0
        if not config.checkpoint_dir:
            return
        try:
            self._writer = Writer(config.checkpoint_dir, comm, config.keep, config.keep_best)
        except (ValueError, OtherRankError) as error:
            raise UnusableDirectoryError(str(error)) from None
        if config.keep_best:
            self._best = gather_objects(comm, all_or_none(comm, self._best_so_far))[0]
        self._checked_step, self._reported = self._run.state.step, self.newest
        self._times.begin()

    def _best_so_far(self) -> float | None:
        """Returns, on rank 0, the best value of the --keep-best metric in the checkpoints up to the
        current step; None if there are none, and on other ranks."""
        if not self._is_first:
            return None
        directory = Path(self._config.checkpoint_dir or "")
        return best_until(directory, self._run.state.step, self._config.keep_best or "")

    def after_step(self, session: Session, result: StepResult) -> None:
        """Starts a checkpoint if one is due, and reports the last if it is written."""
        if self._writer is None:
            return
        run, times, step = self._run, self._times, result.state.step
        if self._is_first:
            run.save_requested = run.save_requested or times.is_due()
            run.suspend_requested = run.suspend_requested or times.is_over()
        if session.arrangement.steps_together:
            is_due = times.after_steps(self._checked_step, step) or result.request > 0
            is_due = self._is_best(session.comm) or is_due
            self._checked_step = min(step, run.state.step)  # a callback may have called `restore`
            if is_due and not run.is_stopped:
                self._start(session)
        self._report(self._writer.poll())

    def is_due(self) -> bool:
        """True if this rank asks for a checkpoint at the end of an epoch. Only the first rank does:
        if it has asked for one before and none was written since, or if one is due by the clock."""
        is_wanted = self._run.save_requested or self._times.is_due()
        return self._writer is not None and self._is_first and is_wanted

    def after_epoch(self, session: Session, is_due: bool) -> None:
        """Starts a checkpoint after the evaluation of an epoch if some rank asks for one
        (`is_due`), the options do, or the --keep-best metric is the best so far."""
        if self._writer is None:
            return
        run, times = self._run, self._times
        is_due = self._is_best(session.comm) or is_due or times.after_epoch(run.state.epoch)
        if is_due or times.after_steps(self._checked_step, run.state.step):
            self._start(session)
        self._checked_step = run.state.step
        served = session.strategy.layout.servers  # servers do not poll within an epoch
        self._report(self._writer.finish() if served else self._writer.poll())

    def _is_best(self, comm: Comm) -> bool:
        """True, on all ranks, if the --keep-best metric was just evaluated as the best."""
        name, best, metrics = self._config.keep_best, self._best, self._run.measured
        if name is None or not metrics:
            return False
        unknown = np.array([float(best is None)])  # a rank may know first of one not written
        comm.all_reduce(unknown, "doubling")
        best = None if unknown[0] else best
        self._best = BETTER[name]([metrics[name]] if best is None else [best, metrics[name]])
        return self._best != best

    # ---- writing

    def _start(self, session: Session, complete: bool = False) -> Writer:
        """Starts to write this step's checkpoint, once the last is complete."""
        assert self._writer is not None
        self._report(self._writer.finish())
        clock = session.comm.system.clock
        began, about = clock(), self.about(session, complete)
        snapshot = session.snapshot(copies=False)
        self._writer.waited += clock() - began
        self._times.begun()
        self._run.save_requested = False
        self._writer.start(snapshot, about, about.log and self._config.log)
        self._pending_step = snapshot.state.step
        return self._writer

    def about(self, session: Session, complete: bool = False) -> RunFacts:
        """Returns what a checkpoint contains besides the arrays of a snapshot; `complete` marks a
        run that has made all its steps."""
        run = self._run
        return RunFacts(
            complete,
            run.total_steps,
            self._facts(),
            run.report.mark,
            run.pace.counts,
            {k: v for k, v in run.measured.items() if isinstance(v, float)},
            tuple(states_of(self._callbacks)),
            first_names(session.model),
            tuple(p.path for p, t in session.model.tensors() if not isinstance(t, Parameter)),
            tuple(x.name for _, x in module_state(session.model)),
            session.metadata,
            models.facts_of(session.model).sizes(),
            run.restored,
        )

    def _report(self, result: WriteResult | None) -> None:
        """Reports, for the result of a write, that a checkpoint was written, or why it was not. For
        None, no write has ended since the last call, and there is nothing to report."""
        if result is None or self._writer is None:
            return
        self._times.written(result.seconds)
        about: Event = {"event": "checkpoint", "step": result.step, "path": str(result.folder)}
        if result.problem:
            self._best = None  # the best one may have no checkpoint now: save the next one
            self._run.report.event({**about, "problem": result.problem})
            return
        if result.step <= self._reported:  # a step made again after a loss
            return
        if result.step == self._pending_step:
            self.newest = result.step
        self._written += 1
        took = {"seconds": round(result.seconds, 4), "waited": round(self._writer.waited, 4)}
        self._run.report.event({**about, "bytes": result.size, **took})

    def go_back(self, step: int) -> None:
        """Forgets checkpoints later than `step`, from which the run continues."""
        self.newest, self._reported = min(self.newest, step), min(self._reported, step)
        self._pending_step = -1
        if step < 0:
            self._written = 0

    # ---- the end of a run

    def suspend(self, session: Session) -> Event:
        """Writes the last checkpoint of a run that is suspended; returns fields for the log's last
        event."""
        if self._writer is None:
            return {}
        run, path = self._run, self._last(session, complete=False)
        counts = {"steps": run.state.step, "total_steps": run.total_steps}
        return {**counts, "skipped_steps": run.skipped, "checkpoint": path}

    def finish(self) -> Event:
        """Waits for the checkpoint that is being written. Returns the field `checkpoints` for the
        log's last event, in which that of `end` is not counted."""
        if self._writer is None:
            return {}
        self._report(self._writer.finish())
        directory, waited = self._config.checkpoint_dir, round(self._writer.waited, 4)
        return {"checkpoints": {"written": self._written, "waited": waited, "directory": directory}}

    def end(self, session: Session) -> None:
        """Writes the checkpoint of a completed run."""
        if self._writer is not None:
            self._last(session, complete=True)

    def _last(self, session: Session, complete: bool) -> str:
        """Writes a checkpoint of this step, waits until it is complete, and returns its path."""
        result = self._start(session, complete).finish()
        if not complete:  # otherwise the last event was reported already
            self._report(result)
        try:
            return path_of(result)
        except NotSavedError as error:
            raise AgreedError(str(error)) from None

    def close(self) -> None:
        """Stops writing checkpoints after a run that has ended on all ranks in the same way: waits
        for the one that is being written, and reports it. Every rank calls it."""
        if self._writer is not None:
            self._report(self._writer.close())
            self._writer = None

    def abandon(self) -> None:
        """Stops writing after an end on this rank alone, and removes unfinished files."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    # ---- besides a run

    def write_to(self, directory: str | os.PathLike[str], session: Session) -> str:
        """Writes a checkpoint of this step to any directory, and waits for it; returns its path."""
        ours = self._config.checkpoint_dir
        if self._writer and ours and os.path.realpath(ours) == os.path.realpath(directory):
            return self._last(session, complete=False)
        writer = Writer(directory, session.comm, keep=ALL)
        try:
            writer.start(session.snapshot(copies=False), self.about(session))
            return path_of(writer.close())
        finally:  # also if a callback's state cannot be written to a file
            writer.abandon()


def save_checkpoint(trainer: Training, directory: str | os.PathLike[str]) -> str:
    """Writes a checkpoint of this step to a directory, and waits for it; returns its path."""
    if not isinstance(trainer.checkpoints, RunCheckpoints):
        trainer.checkpoints = RunCheckpoints(trainer)
    return trainer.checkpoints.write_to(directory, trainer.session)


def path_of(result: WriteResult | None) -> str:
    """Returns a written checkpoint's path; raises NotSavedError on all ranks."""
    assert result is not None
    if result.problem:
        raise NotSavedError(
            f"the checkpoint of step {result.step} was not written to {shown(result.folder)}: "
            f"{result.problem}"
        )
    return str(result.folder)


CHECKS = Checks(loss=check_best)


PARTS = RunParts(read_every=read_every, checkpoints=RunCheckpoints, resume=open_on_newest)
