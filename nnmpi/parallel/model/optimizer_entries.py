"""OptimizerEntries: the whole state of an optimizer, wherever its pieces are, one tensor at a time.

The optimizer knows which pieces of the running sums are here: the stretches of memory that this
rank updates. So this works after the end of a run, too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.optim import Optimizer
from nnmpi.optim import state as states
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.pieces import WRITER, Own, Piece, PieceTable


class OptimizerEntries:
    """(name, value) of the whole state; every rank of `comm` makes it, and iterates to the end."""

    def __init__(self, optimizer: Optimizer, model: Module, comm: Comm) -> None:
        self._optimizer, self._comm = optimizer, comm
        self._parameters = trained(model)
        places = [p.place for p in self._parameters]
        states.check_paths(places)
        self._local = {p: j for j, p in enumerate(optimizer.parameters)}
        self._table = PieceTable(comm, places, [*self._own()])

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        """On the writer everything, in the order of the model; nothing on other ranks."""
        for place, value in self._values(self._table.on_writer):
            if value is not None and self._comm.rank == WRITER:
                yield place.path, value

    def on_all_ranks(self) -> Iterator[tuple[str, np.ndarray]]:
        """Everything on every rank."""
        for place, value in self._values(self._table.on_all_ranks):
            assert value is not None
            yield place.path, value

    def _values(
        self, whole: Callable[..., np.ndarray | None]
    ) -> Iterator[tuple[Place, np.ndarray | None]]:
        """Each entry, as `whole` puts it together."""
        sums = self._optimizer.sums
        places = iter(states.state_places([p.place for p in self._parameters], sums))
        for i, p in enumerate(self._parameters):
            for k in range(len(sums)):
                yield next(places), whole(i, self._dtype, p.layout, self._row(k, p))
            yield next(places), np.array(self._table.steps[i])

    def _row(self, k: int, p: Parameter) -> Callable[[Piece], np.ndarray]:
        """What has the numbers of running sum k of p."""
        return lambda piece: self._optimizer.row(k, self._local[p])[piece.lo : piece.hi]

    @property
    def _dtype(self) -> np.dtype[Any]:
        """The type of all running sums; all parameters of a model have one type."""
        return np.dtype(str(self._optimizer.state[0].dtype))

    def _own(self) -> Iterator[Own]:
        """The pieces that this rank updates."""
        optimizer = self._optimizer
        for i, p in enumerate(self._parameters):
            if p in self._local:
                j = self._local[p]
                for lo, hi in optimizer.stretches[j]:
                    piece = Piece(p.place.part, min(lo, p.size), min(hi, p.size))
                    yield Own(i, optimizer.steps[j], piece)


def load(optimizer: Optimizer, model: Module, state: Mapping[str, Any], comm: Comm) -> None:
    """Copy what this rank has from a whole state, if it fits the whole model on all ranks.

    Every rank calls it, with all of the state.
    """
    places = [p.place for p in trained(model)]
    values = all_or_none(comm, lambda: states.checked(state, places, optimizer.sums))
    optimizer.take(values, [p.place for p in optimizer.parameters])


def trained(model: Module) -> list[Parameter]:
    """The parameters of all ranks that optimizers update."""
    return [p for p in model.parameters() if p.requires_grad]
