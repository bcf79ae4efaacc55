"""Parameter: a leaf that lives in a store and knows its place in the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi import backend, keyed
from nnmpi.autograd import Tensor
from nnmpi.autograd.tape import Memory
from nnmpi.backend import CPU, Array, Backend
from nnmpi.kernels.result import Vjp

Init = Callable[[keyed.Key, np.ndarray], np.ndarray]
"""`init(key, index)`: float64 values for the elements of these C-order indices."""


class Place(NamedTuple):
    """Where a parameter stands in the whole model: its path there, and its whole shape."""

    path: str
    shape: tuple[int, ...]


class Owner(Protocol):
    """What a parameter needs to know of the module it belongs to."""

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
    """Where parameters live: parameter i has its values in `values[i]`, its gradient in `slots[i]`.

    A parameter asks at every use and keeps no address, so that a store may move
    both between steps.
    """

    values: list[Array]
    slots: list[Array]


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The order of axes that undoes this one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class SingleStore:
    """The store of one parameter that no flat buffer has taken in yet."""

    def __init__(self, value: Array) -> None:
        self.values = [value]
        self.slots = [backend.xp_of(value).empty_like(value)]


class Parameter(Tensor):
    """A tensor that training changes.

    `Parameter(array)` holds a copy of the array. A layer's own parameters have
    only a shape and an `init` until somebody looks: then they are drawn from
    the seed and the path, so that neither order nor layout matters. `layout`
    is the order in which the axes lie in memory.
    """

    __slots__ = ("_filled", "_shape", "index", "init", "layout", "name", "owner", "store")

    def __init__(self, value: Any, requires_grad: bool = True) -> None:
        data = value.data if isinstance(value, Tensor) else value
        array = data.copy() if backend.is_array(data) else np.array(data)
        if array.dtype.kind != "f" or not hasattr(data, "dtype"):
            array = array.astype(np.float32)
        self._declare(array.shape, None, None)
        self.requires_grad = requires_grad
        self.move(SingleStore(array), 0)

    @classmethod
    def drawn(
        cls, shape: tuple[int, ...], init: Init | None, layout: tuple[int, ...] | None = None
    ) -> Parameter:
        """A parameter that will be drawn when it is first needed."""
        p = cls.__new__(cls)
        p._declare(shape, init, layout)
        return p

    def _declare(
        self, shape: tuple[int, ...], init: Init | None, layout: tuple[int, ...] | None
    ) -> None:
        self.node, self.memory, self.requires_grad = None, Memory(), True
        self._shape, self.init = tuple(shape), init
        self.layout = tuple(range(len(shape))) if layout is None else layout
        self.owner: Owner | None = None
        self.name, self.index, self._filled = "", 0, False
        self.store: Store | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        """What a copy or a pickle takes along: its values, drawn by now, and not the store.

        The store holds the whole model. Its owner enters itself again (`Module.__setstate__`).
        """
        memory = self.data.transpose(self.layout)
        return self._shape, self.init, self.layout, self.requires_grad, self.name, memory, self.grad

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, init, layout, requires_grad, name, memory, grad = state
        self._declare(shape, init, layout)
        self.requires_grad, self.name = requires_grad, name
        self.move(SingleStore(memory.transpose(inverse(layout))), 0)
        self.grad = grad

    def move(self, store: Store, index: int) -> None:
        """From now on it lives there; its gradient, if any, must be there already."""
        self.store, self.index = store, index

    @property
    def place(self) -> Place:
        """Its path from the root of the model it is part of, and its shape."""
        prefix = self.owner.path if self.owner is not None else ""
        return Place(f"{prefix}.{self.name}" if prefix else self.name, self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements; like the shape, it is known before they are drawn."""
        return math.prod(self._shape)

    @property
    def is_drawn(self) -> bool:
        """Whether it has values yet."""
        return self.store is not None

    def draw(self, dtype: Any = np.float32, on: Backend = CPU) -> None:
        """Take the values that belong to this seed and place."""
        seed = self.owner.root.seed if self.owner is not None else 0
        index = np.arange(self.size, dtype=np.int64)
        assert self.init is not None
        values = self.init(keyed.key(seed, "init", self.place.path), index)
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
        return store.values[self.index]

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
        """Whoever fills the slot in another way than by a backward pass says so here."""
        self._filled = value

    @property
    def slot(self) -> Array:
        """Where its gradient is, or will be, written."""
        if self.store is None:
            self.draw()
            assert self.store is not None
        return self.store.slots[self.index]

    def receive(self, vjp: Vjp, g: Any) -> None:
        """Take a contribution: the first one of a step writes, later ones add."""
        slot = self.slot if self.store is None else self.store.slots[self.index]
        if self._filled:
            slot += vjp(g, None)
            return
        new = vjp(g, slot)
        if new is not slot:
            slot[...] = new
        self._filled = True
