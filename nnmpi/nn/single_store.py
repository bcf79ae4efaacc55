"""Store: the memory of parameters and gradients; SingleStore: the store of one parameter alone."""

from typing import Any, Protocol

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array


class Store(Protocol):
    """The memory of parameters and their gradients.

    A parameter looks up its arrays at each use and keeps no reference to them, so a store may
    gather, rotate or version its memory.

    dtype      the type of all parameters
    rotates    whether the memory of a parameter's values may be reused for others, until `value`
               is called again
    is_shared  whether parameters share the memory of values or gradients in turn
    """

    dtype: np.dtype[Any]
    rotates: bool = False
    is_shared: bool = False

    def value(self, i: int) -> Array:
        """Returns the values of parameter i."""

    def grad_memory(self, i: int) -> Array:
        """Returns the memory of the gradient of parameter i."""

    def fixed_value(self, i: int) -> Array:
        """Returns the memory of the values of parameter i, if it is the same in all steps; at the
        moment it may have other contents."""
        return self.value(i)

    def fixed_gradient(self, i: int) -> Array:
        """Returns the memory of the gradient of parameter i, if it is the same in all steps."""
        return self.grad_memory(i)

    def written(self, i: int) -> None:
        """Records that code other than the optimizer has changed the values of parameter i."""
        return


class SingleStore(Store):
    """The store of one parameter that is not in a flat buffer.

    The gradient gets memory when it is first asked for, so a frozen parameter never has any.
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
