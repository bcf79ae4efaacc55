"""Parameter: a trained tensor that lives in a store and knows its place in the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from nnmpi import backend, keyed
from nnmpi.autograd import Tensor
from nnmpi.autograd.tape import Memory
from nnmpi.backend import CPU, Array, Backend
from nnmpi.kernels.result import Vjp
from nnmpi.nn.place import Place

Init = Callable[[keyed.Key, np.ndarray], np.ndarray]
"""`init(key, index)`: float64 values for the elements of these C-order indices."""


class Owner(Protocol):
    """The module that a parameter is an attribute of."""

    seed: int

    @property
    def path(self) -> str:
        """Its name from the root of the model."""

    @property
    def root(self) -> Owner:
        """The whole model."""

    def holds(self, p: Parameter) -> bool:
        """Whether p is still its parameter."""


class Store(Protocol):
    """The memory of parameters and their gradients.

    A parameter asks at every use and keeps no address, so that a store may gather, rotate or
    version what it hands out.
    """

    def value(self, i: int) -> Array:
        """The values of parameter i."""

    def slot(self, i: int) -> Array:
        """Where the gradient of parameter i is, or will be, written."""


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The order of axes that undoes this one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class SingleStore:
    """The store of one parameter that is in no flat buffer yet."""

    def __init__(self, value: Array) -> None:
        self._value, self._slot = value, backend.xp_of(value).empty_like(value)

    def value(self, i: int) -> Array:
        return self._value

    def slot(self, i: int) -> Array:
        return self._slot


class Parameter(Tensor):
    """A tensor that training changes.

    `Parameter(array)` holds a copy of the array. A layer's own parameters have only a place and
    an `init` until their values are first needed: then these are drawn from the seed, the path
    and the index in the whole tensor, so that neither order nor layout matters. `layout` is the
    order in which the axes lie in memory.
    """

    __slots__ = ("_filled", "_place", "_shape", "index", "init", "layout", "name", "owner", "store")

    def __init__(self, value: Any, requires_grad: bool = True) -> None:
        data = value.data if isinstance(value, Tensor) else value
        array = data.copy() if backend.is_array(data) else np.array(data)
        if array.dtype.kind != "f" or not hasattr(data, "dtype"):
            array = array.astype(np.float32)
        self._declare(Place.of_whole("", array.shape), None, None)
        self.requires_grad = requires_grad
        self.move(SingleStore(array), 0)

    @classmethod
    def drawn(
        cls,
        where: tuple[int, ...] | Place,
        init: Init | None,
        layout: tuple[int, ...] | None = None,
    ) -> Parameter:
        """A parameter whose values are drawn when they are first needed.

        `where` is its shape, or a Place (with any path) of which this rank owns a part.
        """
        place = where if isinstance(where, Place) else Place.of_whole("", where)
        p = cls.__new__(cls)
        p._declare(place, init, layout)
        return p

    def _declare(self, place: Place, init: Init | None, layout: tuple[int, ...] | None) -> None:
        self.node, self.memory, self.requires_grad = None, Memory(), True
        self._place, self._shape, self.init = place, place.local_shape, init
        self.layout = tuple(range(len(self._shape))) if layout is None else layout
        self.owner: Owner | None = None
        self.name, self.index, self._filled = "", 0, False
        self.store: Store | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        """What a copy or a pickle holds: its values, drawn by now, and not the store, which holds
        the whole model. `Module.__setstate__` sets the owner again."""
        memory = self.data.transpose(self.layout)
        return self._place, self.init, self.layout, self.requires_grad, self.name, memory, self.grad

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        place, init, layout, requires_grad, name, memory, grad = state
        self._declare(place, init, layout)
        self.requires_grad, self.name = requires_grad, name
        self.move(SingleStore(memory.transpose(inverse(layout))), 0)
        self.grad = grad

    def move(self, store: Store, index: int) -> None:
        """Make parameter `index` of this store; its gradient, if any, must be there already."""
        self.store, self.index = store, index

    @property
    def place(self) -> Place:
        """Where it stands in the model that it is part of."""
        prefix = self.owner.path if self.owner is not None else ""
        return self._place._replace(path=f"{prefix}.{self.name}" if prefix else self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis of the part that is here."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements here; like the shape, it is known before they are drawn."""
        return math.prod(self._shape)

    @property
    def is_drawn(self) -> bool:
        """Whether it has values yet."""
        return self.store is not None

    def draw(self, dtype: Any = np.float32, on: Backend = CPU) -> None:
        """Draw the values that belong to the seed and the place."""
        seed = self.owner.root.seed if self.owner is not None else 0
        place = self.place
        assert self.init is not None
        values = self.init(keyed.key(seed, "init", place.path), place.indices())
        memory = values.reshape(self._shape).transpose(self.layout)
        array = on.asarray(np.asarray(memory, dtype, order="C"))
        self.move(SingleStore(array.transpose(inverse(self.layout))), 0)

    @property
    def data(self) -> Array:
        """Its values, wherever its store has them now."""
        store = self.store
        if store is None:
            self.draw()
            store = self.store
            assert store is not None
        return store.value(self.index)

    @data.setter
    def data(self, value: Array) -> None:
        """Write over its values; they stay where they are."""
        self.data[...] = value

    @property
    def grad(self) -> Array | None:
        """Its gradient, or None since it was last cleared."""
        return self.slot if self._filled else None

    @grad.setter
    def grad(self, value: Array | None) -> None:
        if value is not None:
            self.slot[...] = value
        self._filled = value is not None

    @property
    def has_grad(self) -> bool:
        """Whether a gradient has arrived since it was last cleared."""
        return self._filled

    @has_grad.setter
    def has_grad(self, value: bool) -> None:
        """For code that fills the slot in another way than by a backward pass."""
        self._filled = value

    @property
    def slot(self) -> Array:
        """Where its gradient is, or will be, written."""
        if self.store is None:
            self.draw()
            assert self.store is not None
        return self.store.slot(self.index)

    def receive(self, vjp: Vjp, g: Any) -> None:
        """Take a contribution to the gradient: the first one of a step writes, later ones add."""
        slot = self.slot
        if self._filled:
            slot += vjp(g, None)
            return
        new = vjp(g, slot)
        if new is not slot:
            slot[...] = new
        self._filled = True
