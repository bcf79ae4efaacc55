"""Store: the memory of parameters; SingleStore: that of one parameter alone."""

from typing import Any, Protocol

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array


class Store(Protocol):
    """The memory of the values and gradients of some parameters, numbered from 0.

    A parameter looks up its arrays at each use and keeps no reference to them. So a store may
    gather values from other ranks when they are used, reuse memory, or keep several versions.

    rotates    whether the memory of a parameter's values may be reused for others, until `value`
               is called again
    is_shared  whether parameters share memory in turn: that of values (`rotates`) or of gradients
    """

    dtype: np.dtype[Any]
    rotates: bool = False
    is_shared: bool = False

    def value(self, i: int) -> Array:
        """Returns the values of parameter i."""

    def grad_memory(self, i: int) -> Array:
        """Returns the memory of the gradient of parameter i."""

    def fixed_value(self, i: int) -> Array:
        """Returns the memory in which the values lie whenever used, equal in all steps."""
        return self.value(i)

    def fixed_gradient(self, i: int) -> Array:
        """Returns the memory in which the gradient lies whenever computed."""
        return self.grad_memory(i)

    def written(self, i: int) -> None:
        """Records that code other than the optimizer has changed the values of parameter i."""
        return


class SingleStore(Store):
    """The store of one parameter that is not in a flat buffer. The gradient gets memory when it is
    first asked for, so a frozen parameter never has any."""

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
