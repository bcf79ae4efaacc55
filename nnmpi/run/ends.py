"""Checks before a run begins; the file of --save, after its last step or an error."""

import numpy as np

from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.files.atomic import NotSavedError
from nnmpi.run.run_state import RunState, StepPhase
from nnmpi.run.session import Session


class NotReadyError(AgreedError, ValueError):
    """There is no run to make."""


def check_ready(run: RunState, session: Session, epochs: int | None) -> None:
    """Raises NotReadyError unless there is a run to make, of what the optimizer has."""
    made, total, model = run.state.step, run.total_steps, session.model
    if session.is_closed:
        raise NotReadyError(
            f"this Trainer has made {made} of its {total} steps and is closed, by close() or "
            "since its run failed; make another, or restore a snapshot"
        )
    if epochs is not None:
        try:
            Config(epochs=epochs)
        except ValueError as error:
            raise NotReadyError(str(error)) from None
    elif run.runs and made > run.first:
        raise NotReadyError(
            f"the run is over, after {made} of its {total} steps: fit(epochs=N) makes N more epochs"
        )
    elif made >= total and not run.epoch_is_over:
        raise NotReadyError(
            f"the snapshot is of step {made}, and this run ends after {total} steps: "
            "make the Trainer with more epochs or steps, or call fit(epochs=N)"
        )
    # by paths, which all ranks have, also where the parameters are elsewhere
    now = {path for path, p in model.named_parameters() if p.requires_grad}
    trained = {v.path for v in session.arrangement.graph.variables if v.is_trained}
    if now - trained or (not made and session.settings.trains_others):
        raise NotReadyError(
            "requires_grad of a parameter was changed after this Trainer was made; "
            "change it in `build`"
        )


# ---- the file of --save


def save(session: Session) -> None:
    """Writes the model, if the first rank wants to; every rank calls it."""
    comm, path = session.comm, session.config.save
    wanted = np.array([bool(path)])
    comm.broadcast(wanted)  # the first rank writes, whatever the others ask for
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
    """Saves the model after an error on this rank, if it is whole and no other rank changes it.

    Of several ranks, others may have made the step in which this one failed.
    """
    if session.is_closed:
        return
    run, comm = session.run, session.comm
    if comm.size == 1:
        whole = run.phase is not StepPhase.UPDATING
    else:
        whole = run.phase is StepPhase.BETWEEN_STEPS and session.first_has_all
    if run.state.step and comm.rank == 0 and whole:
        try:
            session.write(session.config.save)
        except Exception as other:
            error.add_note(f"and the trained model was not saved: {other}")
