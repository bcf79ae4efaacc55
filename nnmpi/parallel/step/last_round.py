"""LastRound: the state of a replica before its last round of local steps, which is undone if a rank
is lost within it."""

from collections.abc import Iterable, Iterator, Sequence

from nnmpi.arrays.backend import Array
from nnmpi.data import Load
from nnmpi.nn import Module
from nnmpi.optim import Optimizer


class LastRound:
    """The version that a replica has, with what it needs to go back to it; sends no message.

    version   the number of steps after which values and optimizer state are as `restore` leaves
              them
    """

    version = 0
    may_make = decision = None  # no rank can end a round without the others

    def __init__(self, optimizer: Optimizer, model: Module) -> None:
        self._optimizer, self._model = optimizer, model
        self._before: list[tuple[Array, Array]] = []  # (array, copy) before the round
        self._steps = list[int]()

    def kept(self, loads: Iterable[Load], step: int) -> Iterator[Load]:
        """Returns the batches: a round, not a step, is undone."""
        return iter(loads)

    def make(self, decision: Sequence[float]) -> None:
        """Never called: `may_make` is None."""
        raise AssertionError("a round has no decision")

    def begin(self) -> None:
        """Copies everything that a round changes."""
        changed = [*self._optimizer.state.values(), *(b for _, b in self._model.named_buffers())]
        for _, x in self._optimizer.operands():
            changed += [x.values] if x.mixed.values is None else [x.values, x.mixed.values]
        self._before = [(array, array.copy()) for array in changed]
        self._steps = [*self._optimizer.steps]

    def end(self, step: int) -> None:
        """Notes that a round is complete, after this number of steps."""
        self.version, self._before = step, []

    def restore(self) -> None:
        """Goes back to the beginning of the round, if one is under way."""
        for array, copy in self._before:
            array[...] = copy
        if self._before:
            self._optimizer.steps[:] = self._steps
            self._before = []
