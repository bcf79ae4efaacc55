"""The end of a run: checks the loss, makes the last event, saves, reports errors."""

import math
from contextlib import suppress

import numpy as np

from nnmpi.comm import RankLost
from nnmpi.io.files.atomic import NotSavedError
from nnmpi.io.output import Event, LostOutputError
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.run_state import RunState, StepPhase
from nnmpi.run.session import Session
from nnmpi.run.training import Training

MOST_RISE = 1e6
"""The loss has diverged if it ends above that many times its first value, or 1 if it began below 1.
Losses that rise for a reason, such as returns of an agent that learns, stay far below."""

OR_ELSE = "--clip-norm 1 or --lr-schedule warmup:100"
"""Other remedies for a loss that diverges than a smaller learning rate."""


class DivergedError(AgreedError):
    """Ends a run because the loss is NaN or infinite, or far above where it began."""


def check_finite(session: Session, quantity: str, value: float, step: int) -> None:
    """Raises DivergedError if `value`, called `quantity`, is NaN or infinite."""
    if not math.isfinite(value):
        base, lr = session.optimizer.param_groups[0]["lr"], session.last_lr
        remedy = f"--lr {base / 10:g}" if lr <= base else "another --lr-schedule"
        saved = "; nothing was saved" if session.config.save else ""
        raise DivergedError(
            f"the {quantity} became {value} at step {step} with learning rate {lr:g}; "
            f"try {remedy}, {OR_ELSE}{saved}"
        )


def has_huge_loss(run: RunState) -> bool:
    """True, on all ranks, if a run that was not stopped ends with both the mean loss of the last
    epoch and the test loss so high that it may have diverged; one bad step does not count."""
    return not run.is_stopped and min(run.metrics["loss"], run.metrics["test_loss"]) > MOST_RISE


def check_rise(trainer: Training) -> None:
    """Raises DivergedError if a huge loss has diverged (MOST_RISE). Every rank calls it."""
    run = trainer.run
    losses = run.first_loss, run.metrics["loss"], run.metrics["test_loss"]
    # ranks that have joined since know no first loss, and must come to the same result
    first, last, test = map(min, zip(*gather_objects(trainer.comm, losses), strict=True))
    if min(last, test) > MOST_RISE * max(first, 1):
        base = trainer.session.optimizer.param_groups[0]["lr"]
        raise DivergedError(
            f"the loss diverged: {first:.4g} in the first step, {last:.4g} in the last epoch and "
            f"{test:.4g} on the test samples, with --lr {base:g}; "
            f"try --lr {base / 10:g}, {OR_ELSE}"
        )


# ---- its last event


def result(trainer: Training, written: Event, is_suspended: bool) -> Event:
    """Returns the last event of a run: metrics, seconds, the hash of the parameters, and what each
    rank has sent. Every rank calls it.

    written        fields about checkpoints, as `Checkpoints.finish` returns them
    is_suspended   True if the run has stopped early and is to be resumed
    """
    run, session, strategy = trainer.run, trainer.session, trainer.session.strategy

    digest = {} if is_suspended else {"parameters_sha256": strategy.full_state.sha256()}
    outcome = strategy.finish()
    session.unshard()
    footprint = session.footprint.event(strategy.traffic.sent)
    rate = run.pace.rates["samples_per_second"]  # 0 unless a second step was made
    planned = (
        run.plan.outcome(trainer.config.batch_size / rate if rate else None) if run.plan else {}
    )
    stopped = "suspended" if is_suspended else "stopped"
    return {
        "event": stopped if run.is_stopped else "done",
        **run.metrics,
        "seconds": run.pace.seconds,
        "ranks": trainer.comm.size,
        "layout": strategy.layout.mesh.axes,
        **outcome,
        **digest,
        **written,
        "measured": gather_objects(trainer.comm, footprint),
        **trainer.tracer.outcome(strategy.layout.mesh),
        **planned,
    }


# ---- the file of --save


def save(session: Session) -> None:
    """Writes the model to the file of --save, if rank 0 has that option; every rank calls it."""
    comm, path = session.comm, session.config.save
    wanted = np.array([bool(path)])
    comm.broadcast(wanted)  # rank 0 writes, whatever --save says on other ranks
    problems: list[str] = []

    def write() -> None:
        try:
            session.write(path)
        except NotSavedError as error:
            problems.append(str(error))

    if wanted[0]:
        all_or_none(comm, write)
        for problem in gather_objects(comm, problems)[0]:
            raise AgreedError(problem)


def rescue(session: Session, error: Exception) -> None:
    """Called after an error on this rank: saves the model to the file of --save, if this is rank 0,
    it has the whole model, and all values are of the same step. Within a step other ranks may have
    made the update in which this rank failed."""
    if session.is_closed:
        return
    run, comm = session.run, session.comm
    if comm.size == 1:
        is_whole = run.phase is not StepPhase.UPDATING
    else:
        is_whole = run.phase is StepPhase.BETWEEN_STEPS and session.first_has_all
    if run.state.step and comm.rank == 0 and is_whole:
        try:
            session.write(session.config.save)
        except Exception as other:
            error.add_note(f"and the trained model was not saved: {other}")


def fail(trainer: Training, error: BaseException) -> None:
    """Reports that the run has failed. After an error that all ranks know, it first completes the
    checkpoint in progress and, unless the last step is made, closes the session."""
    if isinstance(error, AgreedError) and trainer.run.is_running:
        with suppress(RankLost, LostOutputError):
            trainer.checkpoints.close()
            if not trainer.run.is_evaluated:
                trainer.session.close()
    trainer.checkpoints.abandon()
    if trainer.run.opened is not None:
        reason = str(error) or type(error).__name__
        failed = {"event": "failed", "error": reason, "steps": trainer.run.state.step}
        with suppress(LostOutputError):
            trainer.run.opened.event(failed)
