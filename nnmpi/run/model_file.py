"""The file of --save: written after the last step, or when an error ends the run."""

import numpy as np

from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.files.atomic import NotSavedError
from nnmpi.run.run_state import StepPhase
from nnmpi.run.session import Session


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
