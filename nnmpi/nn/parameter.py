"""Parameter: a tensor that is trained. A store holds its values and its gradient.

Rules:

- It asks its store for an array at every use, and nobody keeps one from step to step: ZeRO 3
  gathers, PipeDream rotates, `close` moves. Ops take `operand`; `data`, for users, is a copy where
  the memory will hold other values.
- While `has_grad` is False the memory of the gradient holds anything. The first contribution
  overwrites it, so no step writes zeros; who reads `grad_memory` asks first, or fills it.
- `seed` is None as soon as values are not those that were drawn. Whatever writes values has to see
  to that, or a later seed would be accepted and change nothing.
- A new attribute needs a slot, a line in `_declare`, since `drawn` does without `__init__`, and one
  in both methods of the state if copies are to have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Vjp, precision
from nnmpi.autograd import Tensor, array_of
from nnmpi.autograd.recording import Storage
from nnmpi.nn.place import Place
from nnmpi.nn.seeding import SeedState, next_seed_state, seed_state
from nnmpi.nn.single_store import SingleStore, Store

Init = Callable[[keyed.Key, np.ndarray], np.ndarray]
"""`init(key, index)`: initial values, float64, of the elements with these C-order indices."""


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The inverse permutation of axes."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def memory_order(p: Parameter, values: Array) -> Array:
    """Values of the shape of p in one row, in the order in which p has them in memory."""
    return values.transpose(p.memory_axes).reshape(-1)


def in_shape(row: Array, shape: Sequence[int], memory_axes: Sequence[int]) -> Array:
    """A view of this shape of values in one row, whose axes in memory are `memory_axes`."""
    return row.reshape([shape[k] for k in memory_axes]).transpose(inverse(memory_axes))


def clear_gradients(parameters: Iterable[Parameter], set_to_none: bool) -> None:
    """Gradients become None, without a write, or else those that there are become 0."""
    for p in parameters:
        if set_to_none:
            p.has_grad = False
        elif p.has_grad:
            p.grad_memory[...] = 0


class Parameter(Tensor):
    """A tensor that is trained.

    `Parameter(array)` copies the array. `Parameter.drawn`, which layers use, draws the values
    when they are first needed, from the seed, the path and the index in the whole tensor: they
    depend neither on the order of construction nor on the layout of ranks.

    layout        the order of the axes in memory
    room          what a flat buffer reserves for it: as many elements as the largest part on any
                  rank, so that buffers of ranks with parts of unequal sizes are equal
    has_grad      whether `grad` is not None
    seed          what its values were drawn from; None if they were given, loaded or trained
    drawn_as      the type and the backend of values that are drawn for no store
    construction  what values depend on that `nn.init` draws for a parameter without a module
    """

    __slots__ = (
        "_name",
        "_parent",
        "_place",
        "_shape",
        "drawn_as",
        "has_grad",
        "index",
        "init",
        "memory_axes",
        "room",
        "seed",
        "seed_state",
        "store",
    )

    is_refreshed = True

    def __init__(self, value: Any, requires_grad: bool = True) -> None:
        data = value.data if isinstance(value, Tensor) else value
        array = data.copy() if backend.is_array(data) else np.array(data)
        if not is_float(array.dtype) or not hasattr(data, "dtype"):
            array = array.astype(np.float32)
        self._declare(Place.of_whole("", array.shape), None, None)
        self.requires_grad = requires_grad
        self.move(SingleStore(array), 0)

    @classmethod
    def drawn(
        cls,
        where: tuple[int, ...] | Place,
        init: Init | None,
        memory_axes: tuple[int, ...] | None = None,
    ) -> Parameter:
        """A parameter whose values are drawn when they are first needed.

        `where` is its shape, or a Place (with any path) if this rank owns a part of it.
        """
        place = where if isinstance(where, Place) else Place.of_whole("", where)
        place.check()
        p = cls.__new__(cls)
        p._declare(place, init, memory_axes)
        return p

    def undrawn(self) -> Parameter:
        """A parameter like this one, of the same place, whose values are not drawn yet."""
        twin = Parameter.drawn(self._place, self.init, self.memory_axes)
        twin.requires_grad, twin.room = self.requires_grad, self.room
        return twin

    def _declare(
        self, place: Place, init: Init | None, memory_axes: tuple[int, ...] | None
    ) -> None:
        self.node, self.storage, self.requires_grad = None, Storage(), True
        self._place, self._shape, self.init = place, place.local_shape, init
        self.memory_axes = tuple(range(len(self._shape))) if memory_axes is None else memory_axes
        self.room = place.size
        self._parent: Any = None  # the module, whose file imports this one
        self._name, self.index, self.has_grad = "", 0, False
        self.seed: int | None = None
        self.store: Store | None = None
        self.drawn_as: tuple[Any, Backend] = np.dtype(np.float32), CPU
        self.seed_state: SeedState | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        """Values and gradient instead of the store, which holds the whole model.

        `Module.__setstate__` sets the parent again.
        """
        return (
            (self._place, self.init, self.memory_axes),
            (self.requires_grad, self.seed, self.room),
            (self.data.transpose(self.memory_axes), self.grad),
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        declared, trained, (memory, grad) = state
        self._declare(*declared)
        self.requires_grad, self.seed, self.room = trained
        self.move(SingleStore(memory.transpose(inverse(self.memory_axes))), 0)
        self.grad = grad

    def move(self, store: Store, index: int) -> None:
        """Become parameter `index` of this store, which already holds the gradient, if any."""
        self.store, self.index = store, index

    @property
    def place(self) -> Place:
        """The path in the whole model, the whole shape and the part that is here."""
        prefix = self._parent.path if self._parent is not None else ""
        return self._place._replace(path=f"{prefix}.{self._name}" if prefix else self._name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part that is here."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def is_drawn(self) -> bool:
        """Whether it has values yet."""
        return self.store is not None

    def draw(self, dtype: Any = None, on: Backend | None = None) -> None:
        """Draw the initial values.

        They depend on the seed and the place; those of a layer that stands alone, and whose seed
        was not set, also on the number of modules before it.
        """
        self.seed, values = self._initial()
        memory = values.transpose(self.memory_axes)
        own_dtype, own_backend = self.drawn_as
        array = (on or own_backend).asarray(np.asarray(memory, dtype or own_dtype, order="C"))
        self.move(SingleStore(array.transpose(inverse(self.memory_axes))), 0)

    def _initial(self) -> tuple[int, np.ndarray]:
        """The seed, and the initial values of the part that is here."""
        parent, place = self._parent, self.place
        if parent is None:
            seed, number, _ = self.seed_state or SeedState(seed_state.get().seed)
        else:
            seed, number = parent.root.seed, parent._number
        assert self.init is not None
        key = keyed.key(seed, "init", place.path, *([number] if number else []))
        return seed, self.init(key, place.indices()).reshape(self._shape)

    def redraw(self, init: Init) -> None:
        """Have other initial values: drawn when they are needed, and at once if they are in use.

        They are in use in a flat store, as an optimizer has one, or beside a gradient.
        """
        self.init, store = init, self.store
        if self._parent is None:
            self.seed_state = next_seed_state()
        if isinstance(store, SingleStore) and not self.has_grad:
            values = store.value(self.index)
            self.drawn_as = values.dtype, backend.of(values)
            self.discard()
        elif store is not None:
            seed, initial = self._initial()
            self.data = backend.of(self.operand).asarray(initial, self.dtype)
            self.seed = seed
            super().mark_written()

    def discard(self) -> None:
        """Give back the memory of values that were drawn: they are drawn again when needed."""
        assert self.init is not None
        self.store, self.seed, self.has_grad = None, None, False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self._drawn_store().dtype

    @property
    def operand(self) -> Array:
        """The values, in the memory of the store, which may rotate."""
        return (self.store or self._drawn_store()).value(self.index)

    @property
    def data(self) -> Array:
        """The values, in the memory of the store; a copy where that rotates."""
        values = self.operand
        return values.copy(order="K") if self._drawn_store().rotates else values

    @data.setter
    def data(self, value: Array) -> None:
        """Overwrite the values, in the same memory."""
        given = self._fitting("data", value)  # first: it may be of another parameter
        array = self.operand
        if given is not array:  # it is after `p.data *= 2`
            array[...] = given
            self.seed = None
        self._drawn_store().written(self.index)

    @property
    def grad(self) -> Array | None:
        """The gradient, or None if none has arrived since it was last cleared."""
        return self.grad_memory if self.has_grad else None

    @grad.setter
    def grad(self, value: Array | None) -> None:
        if value is not None:
            target = self.grad_memory
            if value is not target:
                target[...] = self._fitting("grad", value)
        self.has_grad = value is not None

    def _fitting(self, attribute: str, value: Any) -> Array:
        """The array of a value; raises ValueError unless it has the shape of the parameter."""
        array = array_of(value)
        if array.shape != self._shape:
            name = self.place.path or "Parameter"
            raise ValueError(
                f"{name}.{attribute}: the value has shape {array.shape}, the parameter "
                f"{self._shape}; give an array of the same shape, or write to {attribute}[...]"
            )
        return array

    @property
    def grad_memory(self) -> Array:
        """The memory of the gradient, whatever it holds while `has_grad` is False."""
        return (self.store or self._drawn_store()).grad_memory(self.index)

    def _drawn_store(self) -> Store:
        """The store, after the values were drawn if there is none."""
        if self.store is None:
            self.draw()
            assert self.store is not None
        return self.store

    def mark_written(self) -> None:
        super().mark_written()
        self._drawn_store().written(self.index)

    def refresh(self, made: int) -> None:
        """Brings the values to where they were when the node number `made` was made."""
        store = self.store
        if store is not None and store.rotates:
            store.refresh(self.index, made)

    def lend(self, view: Tensor) -> None:
        """As of any tensor; but what would see other values later is copied."""
        if self._drawn_store().rotates:
            view.data = view.data.copy(order="K")
        else:
            super().lend(view)

    def receive(self, vjp: Vjp, g: Any) -> None:
        """Write the first contribution to the gradient; add later ones."""
        target = (self.store or self._drawn_store()).grad_memory(self.index)
        if self.has_grad:
            precision.add_to(target, vjp(g, None))
            return
        new = vjp(g, target)
        if new is not target:
            target[...] = new
        self.has_grad = True
