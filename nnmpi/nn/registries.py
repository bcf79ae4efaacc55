"""The parameters, buffers and modules among a module's attributes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd import Tensor
from nnmpi.autograd.arguments import one_of, type_and_device
from nnmpi.autograd.torch_names import to_method
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.parameter_data import ParameterData
from nnmpi.nn.passes import Combine, checked_combine
from nnmpi.nn.place import Place
from nnmpi.nn.seeding import SeedState, next_seed_state
from nnmpi.nn.store import gather

REGISTRIES = ("_parameters", "_buffers", "_modules")
"""The dictionaries of the parameters, buffers and modules of a module, in order of assignment."""


OF_ALL = {*REGISTRIES, "_parent", "_name", "_seed_state", "_hooks", "_changes", "passes"}
"""Attributes that each module has for the library, and that no `forward` reads."""


IS_CIRCLE = ": a module cannot contain itself, or a {kind} that it is part of"
IS_CONTAINER = (
    ": modules and parameters in a {kind} would not be part of the model; use nn.ModuleList, "
    "nn.ModuleDict or nn.Sequential for modules, and nn.ParameterList for parameters"
)
IS_PARAMETER = (
    " is a Parameter and cannot become a {kind}: assign a Parameter or None, or write into .data"
)
IS_MODULE = " is a Module and cannot become a {kind}: assign a Module or None"
IS_NO_TENSOR = (
    ": a buffer is a Tensor, an array or None, not a {kind}; give nnmpi.tensor(...) of numbers, "
    "and use a plain attribute for anything else"
)
"""Reasons why a value cannot be assigned to an attribute, behind the name of that."""


def read_attributes(module: Registries) -> dict[str, Any]:
    """Returns the attributes that `forward` may read, but for parameters and the like."""
    parts = {name for registry in REGISTRIES for name in vars(module)[registry]}
    return {name: v for name, v in vars(module).items() if name not in OF_ALL | parts}


class Registries:
    """The base class of Module: attributes that are parameters, buffers or modules are registered
    by name when they are assigned, as in PyTorch.

    A parameter or module has one parent, and so one path.
    """

    _combine: Mapping[str, Combine] = MappingProxyType({})  # how buffers combine, by name

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Creates the dictionaries before `__init__`, so that subclasses need no super()."""
        if not REPLACED.keys().isdisjoint(options):
            refuse_replaced(cls, options)
        self = super().__new__(cls)
        state = vars(self)  # `__setattr__` reads the registries
        state.update((registry, {}) for registry in REGISTRIES)
        state.update(_parent=None, _name="", _seed_state=next_seed_state(), passes=0, _hooks=())
        return self

    _parameters: dict[str, Parameter]
    _buffers: dict[str, Place | Literal[False] | None]
    """By name: None if this rank has the whole array; False if state dicts leave the buffer out."""
    _modules: dict[str, Any]
    _parent: Any
    _name: str
    _seed_state: SeedState
    passes: int
    _changes: int = 0
    """Counts settings of hooks and attributes, which end the validity of recorded passes."""

    def __setattr__(self, name: str, value: Any) -> None:
        registry = self._registry(name, value)
        for other in (self._parameters, self._buffers, self._modules):
            if other is not registry:  # the name may have had a value of another kind
                other.pop(name, None)
        if registry is self._buffers:
            value = self._as_buffer(name, value)
        elif registry is not None:
            registry[name] = value  # a replacement keeps the position of the old value
        if isinstance(value, Parameter | Registries):
            parent = value._parent
            # a shared part keeps its first parent, and its path, as long as that one has it
            if parent is None or vars(parent).get(value._name) is not value:
                self._adopt(name, value)
        object.__setattr__(self, name, value)
        if registry is not self._buffers:  # `forward` may assign them
            self.note_change()

    def note_change(self) -> None:
        """Counts a change, after which passes are recorded again."""
        object.__setattr__(self, "_changes", self._changes + 1)

    def _adopt(self, name: str, part: Parameter | Registries) -> None:
        """Makes this module the parent of a part, whose path then begins with its own."""
        object.__setattr__(part, "_parent", self)
        object.__setattr__(part, "_name", name)

    def _registry(self, name: str, value: Any) -> dict[str, Any] | None:
        """Returns the dictionary of an attribute, None for a plain one; may raise ValueError."""
        if isinstance(value, Parameter):
            return self._parameters
        if isinstance(value, Registries):
            # in a circle of modules, paths and the search for the root would have no end
            if value._has(self) or value in self._upwards():
                self._refuse(name, value, IS_CIRCLE)
            return self._modules
        if isinstance(value, list | tuple | dict):
            inside = value.values() if isinstance(value, dict) else value
            if any(isinstance(part, Registries | Parameter) for part in inside):
                self._refuse(name, value, IS_CONTAINER)
        for registry, reason in ((self._parameters, IS_PARAMETER), (self._modules, IS_MODULE)):
            if name in registry and value is not None:
                self._refuse(name, value, reason)
        return self._buffers if name in self._buffers else None

    def _refuse(self, name: str, value: Any, reason: str) -> NoReturn:
        """Raises ValueError for a value that attribute `name` cannot have, with a reason."""
        what = f"{type(self).__name__}.{name}"
        raise ValueError(what + reason.format(kind=type(value).__name__))

    def _has(self, other: Registries) -> bool:
        """True if `other` is this module or a module below it."""
        return other is self or any(m._has(other) for m in self._modules.values())

    def _upwards(self) -> Iterator[Self]:
        """Yields this module and its ancestors, the root last."""
        m: Self | None = self
        while m is not None:
            yield m
            m = m._parent

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        for registry in (self._parameters, self._buffers, self._modules):
            registry.pop(name, None)
        self.note_change()

    def register_buffer(
        self,
        name: str,
        tensor: Tensor | Array | None,
        persistent: bool = True,
        *,
        place: Place | None = None,
        combine: Combine | None = None,
    ) -> None:
        """Adds a tensor that is saved with the model but not trained; an array becomes a tensor in
        its memory. With None the name may get a tensor later. With `persistent=False` state dicts
        and checkpoints leave the buffer out.

        `place` (with any path) is needed if the tensor is a part of a larger one. `combine` is
        needed if `forward` changes the buffer: "mean", as for running statistics, or "sum", as for
        a counter of samples (see `nnmpi.nn.passes.Combine`). With `--sync asp` and `ssp` workers
        average buffers after each epoch. A cache that grows belongs in a plain attribute instead.
        """
        buffer = self._as_buffer(name, tensor)
        if place is not None and buffer is not None:
            check_buffer(f"{type(self).__name__}.{name}", buffer, place)
        self._buffers[name] = place if persistent else False
        if combine:
            self._combine = {**self._combine, name: checked_combine(combine)}
        object.__setattr__(self, name, buffer)

    def _as_buffer(self, name: str, value: Any) -> Tensor | None:
        """Returns the tensor of a buffer given as tensor, array or None."""
        if backend.is_array(value):
            return Tensor(value)
        if not isinstance(value, Tensor | None):
            self._refuse(name, value, IS_NO_TENSOR)
        # the memory of a parameter may move
        return value.detach() if isinstance(value, Parameter | ParameterData) else value

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Assigns a parameter, or None, to the attribute of this name."""
        self._assign(name, param, Parameter)

    def add_module(self, name: str, module: Registries | None) -> None:
        """Assigns a module, or None, to the attribute of this name."""
        self._assign(name, module, Registries)

    register_module = add_module

    def _assign(self, name: str, value: Any, kind: type) -> None:
        """Sets an attribute to a part; raises ValueError for a bad name or another type."""
        owner, noun = type(self).__name__, "Parameter" if kind is Parameter else "Module"
        if value is not None and not isinstance(value, kind):
            raise ValueError(
                f"{owner}[{name!r}]: the value must be a {noun}, not a {type(value).__name__}"
            )
        alike = self._parameters if kind is Parameter else self._modules
        taken = hasattr(self, name) and name not in alike
        if not name or "." in name or taken:
            why = "is taken by another attribute" if taken else "is empty or has a dot"
            raise ValueError(f"{owner}: the name {name!r} {why}; choose another one")
        setattr(self, name, value)

    # ---- types and devices

    parameters: Callable[..., Iterator[Parameter]]
    modules: Callable[[], Iterator[Any]]

    def to(
        self,
        *args: Any,
        dtype: Any = None,
        on: Backend | None = None,
        device: str | Backend | None = None,
        non_blocking: bool = False,
        memory_format: Any = None,
    ) -> Self:
        """Converts to a type and moves to a device; all parameters move into one flat store.

        Positional arguments are PyTorch's: to("cpu"), to(device), to("float64"), to(device, dtype).
        """
        if non_blocking or memory_format is not None:
            _note_unused()
        kind, where = type_and_device(args, dtype, one_of("on", on, "device", device))
        if kind is not None:
            _check_is_float(kind)
        parameters = list(self.parameters())
        first = next((p.array for p in parameters if p.is_drawn), None)
        kind = kind or (np.float32 if first is None else first.dtype)
        where = where or (CPU if first is None else backend.of(first))
        if parameters:  # a store takes its parameters over
            gather(parameters, kind, where)
        self.convert_buffers(kind, where)
        return self

    def convert_buffers(self, dtype: Any, on: Backend) -> None:
        """Converts floating-point buffers to `dtype`, and moves all to a backend."""
        for m, name, t in buffers_of(self.modules()):
            array = on.asarray(t._array, dtype if is_float(t.dtype) else None)
            if array is not t._array:
                setattr(m, name, array)

    # ---- copies and pickles

    def __copy__(self) -> Self:
        """Returns a copy with dictionaries of its own for the same parts, of unchanged parent."""
        twin: Self = object.__new__(type(self))
        twin.__dict__.update(self.__dict__ | {r: dict(self.__dict__[r]) for r in REGISTRIES})
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without the parent, so that a copy has no whole model."""
        adopted = [
            name for name, part in self._parts() if (part._parent, part._name) == (self, name)
        ]
        return self.__dict__ | {"_parent": None, "_name": "", "_own": adopted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the attributes of a copied or unpickled module. It becomes the parent of those
        of its parameters and modules whose parent was the original, or which have no parent."""
        adopted = state.pop("_own")
        self.__dict__.update(state)
        for name, part in self._parts():
            if name in adopted or part._parent is None:
                self._adopt(name, part)

    def _parts(self) -> Iterator[tuple[str, Parameter | Registries]]:
        yield from self._parameters.items()
        yield from self._modules.items()

    # ---- types and devices; last, since these are names of Python's types

    cpu, cuda = to_method("cpu"), to_method("cuda")
    half, float, double = to_method("float16"), to_method("float32"), to_method("float64")
    bfloat16 = to_method("bfloat16")


def _note_unused() -> None:
    from nnmpi.options.notes import note  # rarely

    note(
        "to: non_blocking and memory_format change nothing: a copy is complete when `to` returns, "
        "and images are channels-last in memory"
    )


def _check_is_float(dtype: Any) -> None:
    """Raises ValueError unless `dtype` is a floating-point type."""
    with suppress(TypeError):
        if is_float(np.dtype(dtype)):
            return
    _refuse_type(dtype)


def _refuse_type(dtype: Any) -> NoReturn:
    raise ValueError(
        f"to: {dtype!r:.60} is neither a floating-point type nor a device: give one of these, such "
        'as "float32", or "cuda"'
    )


REPLACED = {
    "device": "move it behind, as in {layer}(...).to(device)",
    "dtype": "convert it behind, as in {layer}(...).to(dtype)",
    "size_average": "write reduction='mean' or reduction='sum'",
    "reduce": "write reduction='none', 'mean' or 'sum'",
}
"""For arguments of PyTorch's layers that nnmpi lacks: what to write instead."""


def refuse_replaced(kind: type[Registries], options: Mapping[str, Any]) -> None:
    """Raises TypeError, with a remedy, for an option of PyTorch's layer that nnmpi replaces."""
    taken = constructor_options(kind)
    if any(option.kind is inspect.Parameter.VAR_KEYWORD for option in taken):
        return
    for name in (REPLACED.keys() & options.keys()) - {option.name for option in taken}:
        instead = REPLACED[name].format(layer=kind.__name__)
        raise TypeError(f"{kind.__name__} takes no argument {name!r}: {instead}")


def constructor_options(kind: type[Registries]) -> list[inspect.Parameter]:
    """Returns the parameters of a module's constructor, without `self`. (`inspect.signature` of the
    class returns that of `__new__` in early releases of Python 3.11.)"""
    return [*inspect.signature(kind.__init__).parameters.values()][1:]


def buffers_of(modules: Iterable[Any]) -> list[tuple[Any, str, Tensor]]:
    """Returns (module, name, tensor) for each buffer that is not None. The library replaces
    `_array` by setattr(module, name, array): so a tensor that the program has got keeps its own."""
    return [(m, n, t) for m in modules for n in m._buffers if (t := getattr(m, n)) is not None]


def check_buffer(name: str, buffer: Tensor, place: Place) -> None:
    """Raises ValueError unless a buffer has the shape of the part that `place` describes."""
    place._replace(path=name).check()
    if place.local_shape != buffer.shape:
        raise ValueError(
            f"{name}: the buffer has shape {buffer.shape}, but its place describes a part of "
            f"shape {place.local_shape}; make them equal"
        )
