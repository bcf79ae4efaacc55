"""StepUndo: what a rank knows of its last step, so that the others can go on if a rank is lost.

    lost in      forward, backward, sums     agreement            update
    version      before the step             before the step      after it
    may finish   -                           as others decided    -

Once a rank knows what all ranks have agreed on, it updates its parameters without messages, so each
rank has all of one version. Some ranks may have the next version and others the one before. Ranks
that know all sums can still make the update, if some rank knows the decision. If the result would
not be a whole model, because the part of the lost rank has no copy, no rank makes the update: the
others have the version before.
"""

from collections.abc import Iterable, Iterator, Sequence

from nnmpi.data import StepBatch
from nnmpi.nn import Module
from nnmpi.parallel.recovery.buffer_copies import BufferCopies
from nnmpi.parallel.step.update import Update


class StepUndo:
    """The version that one rank has, and what it needs to finish or undo its last step; sends no
    message."""

    def __init__(self, update: Update, model: Module) -> None:
        self._update, self._buffers = update, BufferCopies(model)  # of those before the step
        self._begun = 0  # the number of steps before the last one

    def saving_buffers(self, loads: Iterable[StepBatch], step: int) -> Iterator[StepBatch]:
        """Yields the batches, from step number `step` on, and copies all buffers before each step.

        Forward passes move running statistics and other buffers; `restore` undoes that.
        """
        for self._begun, load in enumerate(loads, step):
            self._buffers.copy()
            yield load

    @property
    def version(self) -> int:
        """The number of steps after which this rank's values and optimizer state are as they are
        now; 0 before its first step."""
        return self._update.version

    @property
    def pending_version(self) -> int | None:
        """The version that this rank can still make, as it knows all sums and has not updated; else
        None."""
        return self._update.summed if self._update.summed > self._update.version else None

    @property
    def decision(self) -> tuple[int, tuple[float, ...]] | None:
        """The number of steps, and the decision of all ranks on the last one; None if this rank
        does not know it."""
        decided = self._update.decision
        return None if decided is None else (self._update.summed, tuple(decided))

    def finish(self, decision: Sequence[float]) -> None:
        """Makes the update that all ranks have agreed on."""
        self._update.carry_out(decision)

    def restore(self) -> None:
        """Restores the buffers as they were before the last step, if it has updated nothing."""
        if self._update.version <= self._begun:
            self._buffers.put_back()
