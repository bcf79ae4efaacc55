"""What a Trainer refuses to do, because of what it has done or is doing."""

from nnmpi.optim import Optimizer
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.model.model_part import ModelPart


def check_unused(step: int, first: int, total: int, is_closed: bool) -> None:
    """Raises ValueError unless the run is still to be made, from step `first` on."""
    if step > first or is_closed:
        closed = " and is closed" if is_closed else ""
        raise ValueError(
            f"a Trainer runs once, and this one has made {step} of its {total} steps{closed}; "
            "make another, or restore a snapshot"
        )


def check_left(step: int, total: int) -> None:
    """Raises ValueError unless there are steps left to be made."""
    if step >= total:
        raise ValueError(
            f"the snapshot is of step {step}, and this run ends after {total} steps: "
            "make the Trainer with more epochs or steps"
        )


def check_trained(part: ModelPart, optimizer: Optimizer) -> None:
    """Raises ValueError unless the optimizer has what has to be trained."""
    trained = {p for p in part.parameters if p.requires_grad}
    if trained != {*optimizer.parameters}:
        raise ValueError(
            "requires_grad of a parameter was changed after this Trainer was made; "
            "change it in `build`"
        )


def check_together(what: str, arrangement: Arrangement, in_epoch: bool, is_closed: bool) -> None:
    """Raises ValueError unless all ranks can do it now, between the same two steps."""
    if is_closed:
        instead = ", or set Config.save" if what == "save" else ""
        raise ValueError(f"the run is over: call {what} in on_epoch{instead}")
    if in_epoch and not arrangement.steps_together:
        raise ValueError(f"ranks make their steps at different times: call {what} in on_epoch")
