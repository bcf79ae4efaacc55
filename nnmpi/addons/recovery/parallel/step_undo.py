"""Undoes or finishes the last step of a rank, if another rank is lost.

    rank lost during           passes, sums         agreement              update
    state of this rank         before the step      before the step        after the step
    could finish the step      no                   with the decision      -

A rank's version is the number of updates that its state contains. At the end of a step all ranks
agree on a decision (sums such as the loss and the gradient norm, by which they may skip the
update). Once a rank knows it, the rank updates its parameters without messages, so each rank has
all of its state in one version.

After a loss, some ranks may be one version ahead of others. A rank that knows all gradient sums can
still make the update, if some rank knows the decision. If the result would not be a whole model,
because the lost rank's part has no copy, no rank makes the update.
"""

from collections.abc import Iterable, Iterator, Sequence

from nnmpi.addons.recovery.parallel.buffer_copies import BufferCopies
from nnmpi.data import StepBatch
from nnmpi.nn import Module
from nnmpi.parallel.step.update import Update


class StepUndo:
    """Finishes or undoes the last step of this rank after another rank was lost, and tells which
    version the rank's state is. It sends no message."""

    def __init__(self, update: Update, model: Module) -> None:
        self._update, self._buffers = update, BufferCopies(model)  # of those before the step
        self._begun = 0  # the number of steps before the last one

    def saving_buffers(self, loads: Iterable[StepBatch], step: int) -> Iterator[StepBatch]:
        """Yields the batches `loads`, from step number `step` on, and copies all buffers before
        each step, since forward passes change them; `restore` undoes that."""
        for self._begun, load in enumerate(loads, step):
            self._buffers.copy()
            yield load

    @property
    def version(self) -> int:
        """The number of updates in this rank's values and state."""
        return self._update.version

    @property
    def pending_version(self) -> int | None:
        """The version that this rank's state would have after `finish`, if the rank knows all
        gradient sums of the last step and has not made its update; otherwise None."""
        return self._update.summed if self._update.summed > self._update.version else None

    @property
    def decision(self) -> tuple[int, tuple[float, ...]] | None:
        """(number of steps, the sums over all ranks that decided on the update of the last of
        them); None if this rank does not know them."""
        decided = self._update.decision
        return None if decided is None else (self._update.summed, tuple(decided))

    def finish(self, decision: Sequence[float]) -> None:
        """Makes the update that is still pending on this rank; sends no message. `decision` has the
        sums over all ranks by which ranks decide whether to skip it."""
        self._update.carry_out(decision)

    def restore(self) -> None:
        """Restores the buffers before the last step, unless it was updated."""
        if self._update.version <= self._begun:
            self._buffers.put_back()
