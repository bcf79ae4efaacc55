"""Module: a tree of layers with parameters and buffers, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.backend import CPU, Array, Backend
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.nn.place import Place
from nnmpi.nn.state import assign, fitting
from nnmpi.nn.store import FlatStore

REGISTRIES = ("_parameters", "_buffers", "_modules")
"""The dictionaries of what a module consists of, in order of assignment."""


class Module:
    """A layer or a whole model: subclass it, assign parameters and modules, define `forward`.

    `seed` of the root is what every weight and every dropout mask is drawn from.
    """

    training: bool = True
    seed: int = 0

    def __new__(cls, *args: Any, **options: Any) -> Module:
        """Make the registries before __init__: a subclass need not call super().__init__()."""
        self = super().__new__(cls)
        for registry in REGISTRIES:
            object.__setattr__(self, registry, {})
        object.__setattr__(self, "_parent", None)
        object.__setattr__(self, "_name", "")
        object.__setattr__(self, "passes", 0)
        return self

    _parameters: dict[str, Parameter]
    _buffers: dict[str, Place | None]  # by name; None where the whole array is here
    _modules: dict[str, Module]
    _parent: Module | None
    _name: str
    passes: int

    def __setattr__(self, name: str, value: Any) -> None:
        registry = self._registry(name, value)
        for other in (self._parameters, self._buffers, self._modules):
            if other is not registry:
                other.pop(name, None)
        if registry is not None and registry is not self._buffers:
            registry[name] = value  # a replacement keeps the position of what was there
        if isinstance(value, Parameter):
            owner = value.owner
            if owner is None or not owner.holds(value):
                value.owner, value.name = self, name
        elif isinstance(value, Module):
            parent = value._parent
            if parent is None or parent._modules.get(value._name) is not value:
                object.__setattr__(value, "_parent", self)
                object.__setattr__(value, "_name", name)
        object.__setattr__(self, name, value)

    def holds(self, p: Parameter) -> bool:
        """Whether p is still this module's, under the name it has from there."""
        return self._parameters.get(p.name) is p

    def _registry(self, name: str, value: Any) -> dict[str, Any] | None:
        """The registry that an attribute belongs to: of parameters, modules, buffers, or none."""
        if isinstance(value, Parameter):
            return self._parameters
        if isinstance(value, Module):
            if self in value.modules() or value in self._upwards():
                raise ValueError(
                    f"{type(self).__name__}.{name} cannot be a {type(value).__name__} that this "
                    "module is, or is part of: no model can contain itself"
                )
            return self._modules
        if isinstance(value, list | tuple | dict):
            inside = value.values() if isinstance(value, dict) else value
            if any(isinstance(part, Module | Parameter) for part in inside):
                raise ValueError(
                    f"{type(self).__name__}.{name}: what is in a {type(value).__name__} would "
                    "be no part of the model; use nn.ModuleList or nn.Sequential for modules, "
                    "and an attribute for each parameter"
                )
        for registry, kind in ((self._parameters, "Parameter"), (self._modules, "Module")):
            if name in registry and value is not None:
                raise ValueError(
                    f"{type(self).__name__}.{name} is a {kind} and cannot become a "
                    f"{type(value).__name__}: assign a {kind} or None"
                    f"{', or write into .data' if kind == 'Parameter' else ''}"
                )
        return self._buffers if name in self._buffers and value is not None else None

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        for registry in (self._parameters, self._buffers, self._modules):
            registry.pop(name, None)

    def register_buffer(self, name: str, value: Array, place: Place | None = None) -> None:
        """Add an array that is saved with the model but not trained.

        `place` (with any path) is for an array that is a part of a larger one.
        """
        self._buffers[name] = place
        object.__setattr__(self, name, value)

    # ---- copies and pickles

    def __copy__(self) -> Module:
        """A module with registries of its own that name the same parts; these keep their owner."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__ | {r: dict(self.__dict__[r]) for r in REGISTRIES})
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """What a deep copy or a pickle holds: the parts of the module, but not its parent.

        `__setstate__` makes each module the parent of its own parts again, and of those without.
        """
        own = [name for name, m in self._modules.items() if (m._parent, m._name) == (self, name)]
        own += [name for name, p in self._parameters.items() if (p.owner, p.name) == (self, name)]
        return {k: v for k, v in self.__dict__.items() if k != "_parent"} | {"_own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = state.pop("_own")
        self.__dict__.update(state)
        for name, m in self._modules.items():
            if name in own or m._parent is None:
                m.__dict__.update(_parent=self, _name=name)
        for name, p in self._parameters.items():
            if name in own or p.owner is None:
                p.owner, p.name = self, name

    # ---- running it

    def forward(self, *args: Any, **options: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **options: Any) -> Any:
        if current_pass.get() is not None:
            return self.forward(*args, **options)
        token = current_pass.set(Pass(self.passes))
        try:
            return self.forward(*args, **options)
        finally:
            current_pass.reset(token)
            if self.training:
                object.__setattr__(self, "passes", self.passes + 1)

    def train(self, mode: bool = True) -> Module:
        """Switch to training mode: dropout drops, batch normalisation uses the batch."""
        for m in self.modules():
            object.__setattr__(m, "training", mode)
        return self

    def eval(self) -> Module:
        """Switch to evaluation mode."""
        return self.train(False)

    # ---- the tree

    def _upwards(self) -> Iterator[Module]:
        """This module and its ancestors, the root last."""
        m: Module | None = self
        while m is not None:
            yield m
            m = m._parent

    @property
    def root(self) -> Module:
        """The outermost module that this one is part of."""
        *_, m = self._upwards()
        return m

    @property
    def path(self) -> str:
        """Its name from the root: "" for the root itself, "2.norm" for a part of a part."""
        names = [m._name for m in self._upwards() if m._parent is not None]
        return ".".join(reversed(names))

    def children(self) -> Iterator[Module]:
        """The modules assigned to this one."""
        return iter(self._modules.values())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it; a module in two places comes twice."""
        yield prefix, self
        for name, m in self._modules.items():
            yield from m.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (m for _, m in self.named_modules())

    def _entries(self, *registries: str) -> Iterator[tuple[str, Module, str]]:
        """(full name, module, attribute) of all parameters, buffers or both, in module order."""
        for prefix, m in self.named_modules():
            for name in (name for registry in registries for name in getattr(m, registry)):
                yield f"{prefix}.{name}" if prefix else name, m, name

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under its first name."""
        seen: set[int] = set()
        for full, m, name in self._entries("_parameters"):
            p = getattr(m, name)
            if id(p) not in seen:
                seen.add(id(p))
                yield full, p

    def parameters(self) -> list[Parameter]:
        """Every parameter once."""
        return [p for _, p in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Array]]:
        """Every buffer."""
        return ((full, getattr(m, name)) for full, m, name in self._entries("_buffers"))

    def tensors(self) -> Iterator[tuple[Place, Parameter | Array]]:
        """Every entry of the state dict, in its order: its place, and the parameter or buffer.

        The path of the place is the name in the state dict, also where two names share a tensor.
        """
        for full, m, name in self._entries("_parameters", "_buffers"):
            value = getattr(m, name)
            place = value.place if isinstance(value, Parameter) else m._buffers[name]
            place = place or Place.of_whole("", value.shape)
            yield place._replace(path=full), value

    def zero_grad(self) -> None:
        """Clear every gradient."""
        for p in self.parameters():
            p.grad = None

    def to(self, dtype: Any = None, on: Backend | None = None) -> Module:
        """Move everything to a type and a backend; the parameters move into a flat store."""
        try:
            np.dtype(dtype)
        except TypeError:
            raise ValueError(
                f"to: {dtype!r} is no data type; a device is given as "
                'to(dtype=..., on=nnmpi.backend.get("cuda"))'
            ) from None
        parameters = self.parameters()
        first = next((p.data for p in parameters if p.is_drawn), None)
        dtype = dtype or (np.float32 if first is None else first.dtype)
        on = on or (CPU if first is None else backend.of(first))
        if parameters:
            FlatStore(parameters, dtype, on)
        for _, m, name in self._entries("_buffers"):
            old = getattr(m, name)
            object.__setattr__(m, name, on.asarray(old, dtype if old.dtype.kind == "f" else None))
        return self

    # ---- saving

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy of every parameter and buffer on the host, by PyTorch's names and shapes."""
        state = {}
        for place, value in self.tensors():
            array = value.data if isinstance(value, Tensor) else value
            state[place.path] = np.array(backend.to_host(array), order="C")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a state into the model: all names and shapes must fit, or nothing is changed.

        The state holds whole tensors; of each, the part that is here is copied.
        """
        targets = list(self.tensors())
        values = fitting(state, [place for place, _ in targets])
        for place, target in targets:
            assign(target, values[place.path][place.slices])

    def __repr__(self) -> str:
        lines = [f"({name}): {m!r}".replace("\n", "\n  ") for name, m in self._modules.items()]
        inner = "".join(f"\n  {line}" for line in lines)
        return f"{type(self).__name__}({self.extra_repr()}{inner}{chr(10) if lines else ''})"

    def extra_repr(self) -> str:
        """What stands between the parentheses of its repr."""
        return ""
