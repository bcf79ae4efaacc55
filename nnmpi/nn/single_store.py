"""Store: what holds the values and the gradient of a parameter; SingleStore: that of one alone."""

from typing import Any, Protocol

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array


class Store(Protocol):
    """The memory of parameters and their gradients.

    A parameter looks up its arrays at each use and keeps no reference to them, so a store may
    gather, rotate or version its memory.

    dtype    the type of all parameters
    rotates  whether the memory of a value may hold another one later, until `refresh`
    """

    dtype: np.dtype[Any]
    rotates: bool = False

    def value(self, i: int) -> Array:
        """The values of parameter i."""

    def grad_memory(self, i: int) -> Array:
        """The memory of the gradient of parameter i."""

    def refresh(self, i: int, made: int) -> None:
        """Before the vjps of the node number `made`, which uses parameter i, its values must be
        where they were when the node was made. Called if the store rotates."""
        return

    def written(self, i: int) -> None:
        """The values of parameter i were written from outside."""
        return


class SingleStore(Store):
    """The store of one parameter that is not in a flat buffer.

    There is no memory for a gradient before the first one: a frozen parameter never has one.
    """

    def __init__(self, value: Array) -> None:
        self._value = value
        self._slot: Array | None = None
        self.dtype = value.dtype

    def value(self, i: int) -> Array:
        return self._value

    def grad_memory(self, i: int) -> Array:
        if self._slot is None:
            self._slot = backend.xp_of(self._value).empty_like(self._value)
        return self._slot
