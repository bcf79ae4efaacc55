"""RoundUndo: the state of a replica before its last round of local steps, which is undone if a rank
is lost within it."""

from collections.abc import Iterable, Iterator, Sequence

from nnmpi.arrays.backend import Array
from nnmpi.data import StepBatch
from nnmpi.nn import Module
from nnmpi.optim import Optimizer
from nnmpi.parallel.model.state import HasState
from nnmpi.parallel.recovery.buffer_copies import BufferCopies


class RoundUndo:
    """The version that a replica has, with what it needs to go back to it; sends no message.

    A rank that has ended a round can still go back, until it knows that all ranks have ended it:
    parts of a replica are on several ranks, and a round that only some of them have ended would not
    be a whole model.

    version          the number of steps after which values and optimizer state are as `restore`
                     leaves them
    pending_version  the version of the round that this rank has ended, if others may not have
    decision         the number of steps, and the sums over all replicas, of the last round that all
                     ranks have ended; None before the first one
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
        """Returns the batches: a round, not a step, is undone."""
        return iter(loads)

    def begin(self) -> None:
        """Copies everything that a round changes."""
        changed = [*self._optimizer.state.values()]
        for _, x in self._optimizer.operands():
            changed += [x.values] if x.mixed.values is None else [x.values, x.mixed.values]
        self._buffers.copy()
        self._before = [(array, array.copy()) for array in changed]
        self._steps = [*self._optimizer.steps]

    def end(self, step: int) -> None:
        """Notes that this rank has ended a round, after this number of steps."""
        self.pending_version = step

    def finish(self, decision: Sequence[float]) -> None:
        """Makes the round final, which all ranks have ended; `decision` has its sums over all
        replicas."""
        assert self.pending_version is not None
        self.version, self.decision = self.pending_version, (self.pending_version, (*decision,))
        self.pending_version, self._before = None, []

    def restore(self) -> None:
        """Goes back to the beginning of the round, unless it is final."""
        for array, copy in self._before:
            array[...] = copy
        if self._before:
            self._buffers.put_back()
            self._optimizer.steps[:] = self._steps
            self.pending_version, self._before = None, []
