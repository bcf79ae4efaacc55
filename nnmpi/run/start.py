"""The start of a run: checks that it can begin, and opens its reports."""

from contextlib import ExitStack

from nnmpi.io.output import Event, Report, open_report
from nnmpi.io.output.messages import RANK_FIELDS
from nnmpi.options.config import Config
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.start_events import environment, resumed_event, start_event
from nnmpi.run.training import RUN_PARTS, SUPERVISIONS, Training


class NotReadyError(AgreedError, ValueError):
    """Raised because `fit` was called, but the run has no steps left or the Trainer is closed."""


def check_ready(run: RunState, session: Session, epochs: int | None) -> None:
    """Raises NotReadyError unless `fit` can begin: the Trainer is open, there are steps to make,
    and the parameters with `requires_grad` are those that the optimizer has."""
    made, total, model = run.state.step, run.total_steps, session.model
    if session.is_closed:
        raise NotReadyError(
            f"this Trainer has made {made} of its {total} steps and is closed, by close() or "
            "because its run failed; make another Trainer, or restore a snapshot"
        )
    if epochs is not None:
        try:
            Config(epochs=epochs)
        except ValueError as error:
            raise NotReadyError(str(error)) from None
    elif run.fit_calls and made > run.first_step:
        raise NotReadyError(
            f"the run is over, after {made} of its {total} steps: fit(epochs=N) makes N more epochs"
        )
    elif made >= total and not run.epoch_is_over:
        raise NotReadyError(
            f"the snapshot is of step {made}, and this run ends after {total} steps: "
            "make the Trainer with more epochs or steps, or call fit(epochs=N)"
        )
    # compare by paths: every rank has them all, also of parameters that are on other ranks
    trainable = {path for path, p in model.named_parameters() if p._requires_grad}
    trained = {v.path for v in session.arrangement.graph.variables if v.is_trained}
    if trainable - trained or (not made and session.settings.trains_others):
        raise NotReadyError(
            "requires_grad of a parameter was changed after this Trainer was made; "
            "change it in `build`"
        )


def open_reports(
    trainer: Training, lost: list[Event], outputs: ExitStack, report: Report | None
) -> None:
    """Opens the reports of this rank (log and terminal, or `report`), which `outputs` closes, and
    reports the start of the run, and the events in `lost`, about ranks that were lost."""
    run, session, comm, config = trainer.run, trainer.session, trainer.comm, trainer.config
    resumed = run.resumed if run.fit_calls == 1 else None
    is_reported = trainer.supervisor.is_start_reported(trainer)
    mark = resumed.mark if resumed and not is_reported else None
    # after one that left no checkpoint
    starts_again = not run.resumed and SUPERVISIONS.chosen(config) is not None
    appends = starts_again or run.fit_calls > 1 or is_reported
    opened = open_report(config, comm, report or run.opened, appends, mark)
    is_new = run.opened is None and bool(comm.rank == 0 or report)
    if comm.rank == 0 or report:
        if is_new:
            outputs.enter_context(opened)
            for at_end in (part.at_end for part in RUN_PARTS.given(config) if part.at_end):
                at_end(outputs, config, opened, comm.rank == 0)
        run.opened = opened
    run.report = opened
    run.runs_users_code |= report is not None
    # after open_report, which cuts the log of a resumed run at its mark
    trainer.supervisor.opened_reports(trainer, is_new)
    begun = resumed_event if resumed else start_event
    event = {**begun(session, run), **environment(session)}
    if run.reported.claim(run.first_step, "start"):
        if run.report.describes_ranks:
            for fields in RANK_FIELDS.rows():
                event |= fields(session.arrangement)
        run.report.event(event)
    for event in lost:
        run.report.event(event)
    lost.clear()
