"""ReferenceUpdate: the update that an optimizer on one rank makes of a layout's gradients.

In float32 rounding separates two trainings, so they cannot be compared for long. One update can,
step by step: from equal parameters and equal gradients one formula gives the same numbers,
whichever rank updates which part of them.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.stores import LocalStore, values_of
from nnmpi.parallel.strategy import TrainSpec


class ReferenceUpdate:
    """A copy of the parameters of a layout, with an optimizer of its own and all its state.

    `parameters` are those of which this rank holds a part; their gradients are clipped already.
    """

    def __init__(self, spec: TrainSpec, parameters: Sequence[Parameter]) -> None:
        self._layout, self._lr = parameters, spec.control.lr
        self._own = [Parameter(values_of(p)) for p in parameters]
        first = self._own[0].data
        FlatStore(self._own, first.dtype, backend.of(first))
        self.optimizer = spec.optimizer(self._own)

    def follow(self, step: int, updated: bool) -> Iterator[tuple[Array, Array]]:
        """Pairs to compare after a step of the layout: its parameters, and what they should be."""
        for own, p in zip(self._own, self._layout, strict=True):
            own.grad = summed_gradient(p) if p.has_grad else None
        if updated:
            self.optimizer.lr = self._lr(step)
            self.optimizer.step()
        for own, p in zip(self._own, self._layout, strict=True):
            yield values_of(p), own.data

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over the state of the layout's optimizer."""
        self.optimizer.take(state, [p.place for p in self._layout])

    def take_over(self) -> None:
        """Copies the layout's parameters."""
        for own, p in zip(self._own, self._layout, strict=True):
            own.data = values_of(p)


def summed_gradient(p: Parameter) -> Array:
    """The gradient of p after a step; the ranks of dp call it for all parameters in one order."""
    if isinstance(p.store, LocalStore):
        return p.store.whole_gradient(p.index)
    return p.slot
