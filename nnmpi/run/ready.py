"""What must be so before a run begins."""

from nnmpi.options.config import Config
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.run_state import RunState
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
