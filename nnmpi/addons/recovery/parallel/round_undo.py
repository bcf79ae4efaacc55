"""Undoes a replica's last round of local steps after a loss."""

from collections.abc import Iterable, Iterator, Sequence

from nnmpi.addons.recovery.parallel.buffer_copies import BufferCopies
from nnmpi.arrays.backend import Array
from nnmpi.data import StepBatch
from nnmpi.nn import Module
from nnmpi.optim import Optimizer
from nnmpi.parallel.model.state import HasState


class RoundUndo:
    """Copies of a replica's state at the start of a round of local steps, with which the round can
    be undone. It sends no message.

    A rank that has ended a round can still go back, until it knows that all ranks have ended it:
    parts of a replica are on several ranks, and a round that only some of them have ended would not
    give a whole model.

    version          the number of steps that the rank's state would contain after `restore`
    pending_version  the number of steps that it contains now, if this rank has ended a round and
                     others may not have ended it; else None
    decision         for the last round that all ranks have ended: (number of steps of the run at
                     its end, sums over all replicas, such as the loss); None before the first one
    """

    version = 0
    pending_version: int | None = None
    decision: tuple[int, tuple[float, ...]] | None = None

    def __init__(self, optimizer: Optimizer, model: Module, *others: HasState) -> None:
        self._optimizer = optimizer
        self._buffers = BufferCopies(model, *others)  # of those before the round
        self._before: list[tuple[Array, Array]] = []  # (array, copy) before the round
        self._steps = list[int]()

    def saving_buffers(self, loads: Iterable[StepBatch], step: int) -> Iterator[StepBatch]:
        """Yields the batches `loads`: buffers are copied in `begin`, not before each step."""
        return iter(loads)

    def begin(self) -> None:
        """Copies all state that a round of steps changes."""
        changed = [*self._optimizer.state.values()]
        for _, x in self._optimizer.operands():
            changed += [x.values] if x.mixed.values is None else [x.values, x.mixed.values]
        self._buffers.copy()
        self._before = [(array, array.copy()) for array in changed]
        self._steps = [*self._optimizer.steps]

    def end(self, step: int) -> None:
        """Records that this rank has ended a round with step `step`."""
        self.pending_version = step

    def finish(self, decision: Sequence[float]) -> None:
        """Makes the last round final, which all ranks have ended with these sums over all
        replicas."""
        assert self.pending_version is not None
        self.version, self.decision = self.pending_version, (self.pending_version, (*decision,))
        self.pending_version, self._before = None, []

    def restore(self) -> None:
        """Restores the state before the last round, unless that is final."""
        for array, copy in self._before:
            array[...] = copy
        if self._before:
            self._buffers.put_back()
            self._optimizer.steps[:] = self._steps
            self.pending_version, self._before = None, []
