"""Parameter: a tensor that is trained. A Store has the memory of its values and gradient.

Rules:

- A parameter asks its store for the array at every use, and no code keeps an array from step to
  step: with ZeRO 3 values are gathered, with PipeDream they have versions, and `close` moves them.
  Ops read `_array`; users read `data`, which is a copy if the store reuses the memory.
- While `has_grad` is False, the contents of the gradient's memory are undefined. The first
  contribution overwrites them, so no step has to write zeros. Code that reads `grad_memory` checks
  `has_grad` first, or fills the memory.
- `seed` is None as soon as the values are no longer the initial ones. Code that writes values
  has to reset it, or a seed that is set too late would be accepted and change nothing.
- A new attribute needs a slot, a line in `_declare` (since `lazy` does not call `__init__`), and a
  place in `__getstate__` and `__setstate__` if copies are to have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

import numpy as np

from nnmpi.addons import finder
from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Vjp, precision
from nnmpi.autograd import Tensor, array_of
from nnmpi.autograd.recording import Storage, memory_needed, memory_row
from nnmpi.nn.parameter_data import ParameterData
from nnmpi.nn.place import Place
from nnmpi.nn.seeding import SeedState, next_seed_state, seed_state
from nnmpi.nn.single_store import SingleStore, Store

Init = Callable[[keyed.Key, np.ndarray], np.ndarray]
"""`init(key, index)`: initial values, float64, of the elements with these C-order indices."""


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Returns the inverse of a permutation of axes."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def memory_axes(tensor: Any) -> tuple[int, ...]:
    """Returns the axes of a parameter or buffer in the order in which they lie in memory."""
    return tensor.memory_axes if isinstance(tensor, Parameter) else tuple(range(tensor.ndim))


def memory_order(p: Parameter, values: Array) -> Array:
    """Returns `values`, in the shape of p, flattened in the order of p's memory."""
    return values.transpose(p.memory_axes).reshape(-1)


def in_shape(row: Array, shape: Sequence[int], memory_axes: Sequence[int]) -> Array:
    """Returns a flat array in a shape, whose axes lie in memory as `memory_axes` says."""
    return row.reshape([shape[k] for k in memory_axes]).transpose(inverse(memory_axes))


def clear_gradients(parameters: Iterable[Parameter], set_to_none: bool) -> None:
    """Sets gradients to None, which writes nothing, or fills existing ones with 0."""
    for p in parameters:
        if set_to_none:
            if p.given_grad is not None:
                memory_needed("leave_gradient")(p)
            p.has_grad = False
        elif p.has_grad:
            p.grad_memory[...] = 0


class Parameter(Tensor):
    """A trainable tensor, whose values and gradient are in a Store, which may serve many.

    `Parameter(array)` copies the array; `Parameter(tensor)` shares the memory of the tensor, where
    it can. `Parameter.lazy`, which layers use, draws the values when they are first needed, from
    the seed, the path and the index in the whole tensor: they depend neither on the order of
    construction nor on the layout of ranks.

    memory_axes  the order of the axes in memory
    padded_size  the number of elements that a flat buffer reserves for this parameter: the size of
                 the largest part on any rank, so that the buffers of all ranks have equal lengths
    has_grad     whether `grad` is not None
    given_grad   a reference to the Storage of the tensor that `grad` has returned, which lives as
                 long as a program keeps the gradient; None if `grad` was not read
    seed         the seed of the initial values; None if they were given, loaded or trained
    drawn_as     the type and the backend in which values are drawn by default
    seed_state   the seed and counter for `nn.init`, if the parameter belongs to no module
    """

    __slots__ = (
        "_name",
        "_parent",
        "_place",
        "_shape",
        "drawn_as",
        "given_grad",
        "has_grad",
        "index",
        "init",
        "memory_axes",
        "padded_size",
        "seed",
        "seed_state",
        "store",
    )

    is_refreshed = True
    given_grad: ref[Any] | None

    def __init__(self, value: Any, requires_grad: bool = True) -> None:
        made = memory_row("made") if isinstance(value, Tensor) else None
        if made is not None and made(self, value, requires_grad):
            return
        data = value.array if isinstance(value, Tensor) else value
        array = data.copy() if backend.is_array(data) else np.array(data)
        if not is_float(array.dtype) or not hasattr(data, "dtype"):
            array = array.astype(np.float32)
        self._declare(Place.of_whole("", array.shape), None, None)
        self._requires_grad = requires_grad
        self.move(SingleStore(array), 0)

    @classmethod
    def lazy(
        cls,
        where: tuple[int, ...] | Place,
        init: Init | None,
        memory_axes: tuple[int, ...] | None = None,
    ) -> Parameter:
        """Returns a parameter whose values are drawn by `init` when they are first needed.

        `where` is the shape; or, if this rank has only a part of a larger tensor, a Place (its path
        is ignored). `memory_axes` is the order of the axes in memory, by default C order.
        """
        place = where if isinstance(where, Place) else Place.of_whole("", where)
        place.check()
        p = cls.__new__(cls)
        p._declare(place, init, memory_axes)
        return p

    def lazy_copy(self) -> Parameter:
        """Returns a parameter of this shape and initial values, not drawn, in no module."""
        twin = Parameter.lazy(self._place, self.init, self.memory_axes)
        twin._requires_grad, twin.padded_size = self._requires_grad, self.padded_size
        return twin

    def copied(self, values: Array) -> Parameter:
        """Returns a parameter of this path with these values, in its own memory."""
        copy = Parameter.lazy(self._place, None, self.memory_axes)
        copy._name = self.place.path
        copy.move(SingleStore(values), 0)
        return copy

    def _declare(
        self, place: Place, init: Init | None, memory_axes: tuple[int, ...] | None
    ) -> None:
        self.node = self.viewed = self.given_grad = None
        self.storage, self._requires_grad = Storage(), True
        self._place, self._shape, self.init = place, place.local_shape, init
        self.memory_axes = tuple(range(len(self._shape))) if memory_axes is None else memory_axes
        self.padded_size = place.size
        self._parent: Any = None  # a Module, whose file imports this one
        self._name, self.index, self.has_grad = "", 0, False
        self.seed: int | None = None
        self.store: Store | None = None
        self.drawn_as: tuple[Any, Backend] = np.dtype(np.float32), CPU
        self.seed_state: SeedState | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        """Returns options, values and gradient for a copy or pickle, but not the Store, which may
        hold all parameters of the model. `Module.__setstate__` sets the parent module again."""
        return (
            (self._place, self.init, self.memory_axes),
            (self._requires_grad, self.seed, self.padded_size),
            (self.array.transpose(self.memory_axes), self.grad_array),
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        declared, trained, (memory, grad) = state
        self._declare(*declared)
        self._requires_grad, self.seed, self.padded_size = trained
        self.move(SingleStore(memory.transpose(inverse(self.memory_axes))), 0)
        self.grad_array = grad

    def move(self, store: Store, index: int) -> None:
        """Makes a Store hold the values and the gradient of this parameter, under the number
        `index`. The store must have the values already, and the gradient if there is one."""
        self.store, self.index = store, index

    @property
    def place(self) -> Place:
        """The parameter's path, the shape of the whole tensor, and this rank's part."""
        prefix = self._parent.path if self._parent is not None else ""
        return self._place._replace(path=f"{prefix}.{self._name}" if prefix else self._name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part that this rank owns."""
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def is_drawn(self) -> bool:
        """True if the parameter has values already."""
        return self.store is not None

    def draw(self, dtype: Any = None, on: Backend | None = None) -> None:
        """Draws the initial values, by the seed, the path, and the index of each element in the
        whole tensor; in a layer alone, without own seed, also by the number of modules before."""
        self.seed, values = self._initial()
        memory = values.transpose(self.memory_axes)
        own_dtype, own_backend = self.drawn_as
        array = (on or own_backend).asarray(np.asarray(memory, dtype or own_dtype, order="C"))
        self.move(SingleStore(array.transpose(inverse(self.memory_axes))), 0)

    def _initial(self) -> tuple[int, np.ndarray]:
        """Returns the seed, and the initial values of the part that this rank owns."""
        parent, place = self._parent, self.place
        if parent is None:
            seed, number, _ = self.seed_state or SeedState(seed_state.get().seed)
        else:
            seed, number = parent.root.seed, parent._number
        assert self.init is not None
        key = keyed.key(seed, "init", place.path, *([number] if number else []))
        return seed, self.init(key, place.indices()).reshape(self._shape)

    def redraw(self, init: Init) -> None:
        """Sets another function for initial values, which are drawn when needed. Values in use are
        replaced at once: those with a gradient, and those in a flat store."""
        self.init, store = init, self.store
        if self._parent is None:
            self.seed_state = next_seed_state()
        if isinstance(store, SingleStore) and not self.has_grad:
            values = store.value(self.index)
            self.drawn_as = values.dtype, backend.of(values)
            self.discard()
        elif store is not None:
            seed, initial = self._initial()
            self.array = backend.of(self._array).asarray(initial, self.dtype)
            self.seed = seed
            self.storage.mark_written()

    def discard(self) -> None:
        """Frees the memory of initial values, which are drawn again when they are needed."""
        assert self.init is not None
        self.store, self.seed, self.has_grad = None, None, False

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._drawn_store().dtype

    @property
    def _array(self) -> Array:
        """The values, as an array in the memory of the Store. It is valid only until another
        parameter is used if the store reuses this memory (`Store.rotates`), as with ZeRO 3."""
        return (self.store or self._drawn_store()).value(self.index)

    @property
    def array(self) -> Array:
        """The values in the Store's memory; a copy if it reuses that (`Store.rotates`)."""
        values = self._array
        return values.copy(order="K") if self._drawn_store().rotates else values

    @array.setter
    def array(self, value: Array) -> None:
        """Overwrites the values in place."""
        given = self._fitting("data", value)  # first: to read another parameter may move memory
        array = self._array
        if given is not array:  # they are one array after `p.data *= 2`
            array[...] = given
            self.seed = None
        self._drawn_store().written(self.index)

    @property
    def data(self) -> Tensor:
        """The values as a tensor without gradient tracking; writes to it change the parameter."""
        return ParameterData(self)

    @data.setter
    def data(self, value: Any) -> None:
        memory_needed("assign_data")(self, value)

    @property
    def grad(self) -> Tensor | None:
        """The gradient, or None; shares the gradient's memory until that is cleared."""
        kept = memory_row("kept_gradient") if self.has_grad else None
        return super().grad if kept is None else kept(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        self.grad_array = None if value is None else array_of(value)

    @property
    def grad_array(self) -> Array | None:
        """The gradient, or None if none has arrived since it was last cleared."""
        return self.grad_memory if self.has_grad else None

    @grad_array.setter
    def grad_array(self, value: Array | None) -> None:
        if self.given_grad is not None and value is not self.grad_memory:
            memory_needed("leave_gradient")(self)
        if value is not None and value is not self.grad_memory:
            self.grad_memory[...] = self._fitting("grad", value)
        self.has_grad = value is not None

    def _fitting(self, attribute: str, value: Any) -> Array:
        """Returns an assigned value as an array; raises ValueError for another shape."""
        array = array_of(value)
        if array.shape != self._shape:
            self._refuse(attribute, array)
        return array

    def _refuse(self, attribute: str, array: Array) -> NoReturn:
        name = self.place.path or "Parameter"
        raise ValueError(
            f"{name}.{attribute}: the value has shape {array.shape}, the parameter "
            f"{self._shape}; give an array of the same shape, or write to {attribute}[...]"
        )

    @property
    def grad_memory(self) -> Array:
        """The memory of the gradient; its contents are undefined while `has_grad` is False."""
        return (self.store or self._drawn_store()).grad_memory(self.index)

    def _drawn_store(self) -> Store:
        """Returns the Store with the values; if there is none, draws the initial values first."""
        if self.store is None:
            self.draw()
            assert self.store is not None
        return self.store

    def mark_written(self) -> None:
        self.storage.mark_written()
        self.values_written()

    def values_written(self) -> None:
        """Records a change of values by other code: they no longer follow from the seed."""
        self.seed = None
        self._drawn_store().written(self.index)

    def refresh(self) -> None:
        """Makes a store that reuses memory (`Store.rotates`) put the values back there."""
        store = self.store
        if store is not None and store.rotates:
            store.value(self.index)

    def share(self, view: Tensor) -> None:
        """Lets `view` share this storage, or gives it a copy if the store reuses memory."""
        if self._drawn_store().rotates:
            view.array = view.array.copy(order="K")
        else:
            super().share(view)

    def receive(self, vjp: Vjp, g: Any) -> None:
        """Adds vjp(g) to the gradient; the first contribution overwrites the memory."""
        target = (self.store or self._drawn_store()).grad_memory(self.index)
        if self.has_grad:
            precision.add_to(target, vjp(g, None))
            return
        new = vjp(g, target)  # many vjps write into `target`, and return it
        if new is not target:
            target[...] = new
        self.has_grad = True


if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.nn.parameter", "layers")
