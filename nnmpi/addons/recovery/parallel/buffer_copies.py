"""Copies of a model's buffers before a step, which are restored if a rank is lost in the step."""

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.nn import Module
from nnmpi.nn.place import StateArray
from nnmpi.nn.registries import buffers_of
from nnmpi.parallel.model.state import HasState, module_state


class BufferCopies:
    """Copies of a model's buffers, of other state that modules declare in `state_arrays`, and of
    the state of `others`, taken before a step that may be undone. Buffers are kept by module and
    name, since a forward pass may replace them."""

    def __init__(self, model: Module, *others: HasState) -> None:
        self._copies: list[tuple[Module, str, Array]] = []
        self._model, self._others = model, others
        self._elements: list[tuple[StateArray, np.ndarray]] = []

    def copy(self) -> None:
        """Copies all buffers of the model, and other state that a step changes, for `put_back`."""
        self._copies = [
            (m, name, t._array.copy()) for m, name, t in buffers_of(self._model.modules())
        ]
        state = [x for _, x in module_state(self._model)]
        state += [x for other in self._others for x in other.state_arrays()]
        self._elements = [(x, x.elements().copy()) for x in state]

    def put_back(self) -> None:
        """Sets buffers and other state as at the last `copy`."""
        for module, name, array in self._copies:
            getattr(module, name)._array[...] = array
        for x, elements in self._elements:
            x.put(elements)
