"""StepState: how far training has come; the one counter that steps depend on."""

from typing import NamedTuple


class StepState(NamedTuple):
    """Before a step: what a checkpoint records besides the entries of stores and optimizers."""

    step: int = 0  # steps made so far
    epoch: int = 0
    batch: int = 0  # within the epoch

    def next(self, batches: int) -> "StepState":
        """After the step, in an epoch of so many batches."""
        if self.batch + 1 < batches:
            return StepState(self.step + 1, self.epoch, self.batch + 1)
        return StepState(self.step + 1, self.epoch + 1, 0)


class Position(NamedTuple):
    """Where a worker is in its data, if each has a pace of its own: which step it makes next."""

    worker: int
    workers: int
    next: StepState


class StepResult(NamedTuple):
    """A step over `samples` samples: the sum of their losses, and what all ranks agreed on."""

    state: StepState  # after the step
    samples: int
    divisor: float  # what the mean of the losses divides their sum by
    loss: float
    stop: bool  # whether some rank wants to end the run
    updated: bool  # False if a number was not finite, and parameters were left as they are
    gradient_norm: float | None = None  # before clipping; None where no rank knows all of it
