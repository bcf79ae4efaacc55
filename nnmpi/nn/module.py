"""Module: a tree of layers with parameters and buffers, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.backend import CPU, Array, Backend
from nnmpi.nn import refusals
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, Pass, current_pass
from nnmpi.nn.place import Place
from nnmpi.nn.seeding import Construction, next_construction, refuse_late_seed
from nnmpi.nn.state import LoadedKeys, buffer_array, load_into, on_host
from nnmpi.nn.store import FlatStore

REGISTRIES = ("_parameters", "_buffers", "_modules")
"""The dictionaries of the parameters, buffers and modules of a module, in order of assignment."""


class Module:
    """A layer or a whole model: subclass it, assign parameters and modules, define `forward`.

    All weights and dropout masks of a model are drawn from the `seed` of its root and the path in
    the model. A weight that is read or changed before its layer is part of a model is drawn then,
    and keeps its values in the model; two blocks of several layers that are changed so start with
    equal weights, unless each sets its own `seed` first.
    """

    training: bool = True

    def __new__(cls, *args: Any, **options: Any) -> Module:
        """Create the registries before __init__, so that subclasses need no super().__init__()."""
        self = super().__new__(cls)
        for registry in REGISTRIES:
            object.__setattr__(self, registry, {})
        object.__setattr__(self, "_parent", None)
        object.__setattr__(self, "_name", "")
        object.__setattr__(self, "_construction", next_construction())
        object.__setattr__(self, "passes", 0)
        return self

    def __init__(self) -> None:
        """Take no argument: options that no subclass declares are refused."""

    _parameters: dict[str, Parameter]
    _buffers: dict[str, Place | None]  # by name; None where the whole array is here
    _modules: dict[str, Module]
    _parent: Module | None
    _name: str
    _construction: Construction
    passes: int

    def __setattr__(self, name: str, value: Any) -> None:
        registry = self._registry(name, value)
        for other in (self._parameters, self._buffers, self._modules):
            if other is not registry:
                other.pop(name, None)
        if registry is self._buffers:
            value = buffer_array(f"{type(self).__name__}.{name}", value)
        elif registry is not None:
            registry[name] = value  # a replacement keeps the position of what was there
        if isinstance(value, Parameter | Module):
            parent = value._parent
            if parent is None or vars(parent).get(value._name) is not value:
                self._adopt(name, value)
        object.__setattr__(self, name, value)

    def _adopt(self, name: str, part: Parameter | Module) -> None:
        """Become the parent of a part: it has its path from here."""
        object.__setattr__(part, "_parent", self)
        object.__setattr__(part, "_name", name)

    def _registry(self, name: str, value: Any) -> dict[str, Any] | None:
        """The registry for an attribute, or None; raises ValueError if the tree would be wrong."""
        if isinstance(value, Parameter):
            return self._parameters
        owner = type(self).__name__
        if isinstance(value, Module):
            if self in value.modules() or value in self._upwards():
                raise refusals.inside_itself(owner, name, value)
            return self._modules
        if isinstance(value, list | tuple | dict):
            inside = value.values() if isinstance(value, dict) else value
            if any(isinstance(part, Module | Parameter) for part in inside):
                raise refusals.in_a_container(owner, name, value)
        for registry, kind in ((self._parameters, "Parameter"), (self._modules, "Module")):
            if name in registry and value is not None:
                raise refusals.replaced(owner, name, kind, value)
        return self._buffers if name in self._buffers and value is not None else None

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        for registry in (self._parameters, self._buffers, self._modules):
            registry.pop(name, None)

    def register_buffer(self, name: str, value: Array | Tensor, place: Place | None = None) -> None:
        """Add an array that is saved with the model but not trained.

        `place` (with any path) is needed if the array is a part of a larger one.
        """
        array = buffer_array(f"{type(self).__name__}.{name}", value)
        self._buffers[name] = place
        object.__setattr__(self, name, array)

    # ---- copies and pickles

    def __copy__(self) -> Module:
        """A module with registries of its own and the same parts, which keep their parent."""
        twin: Module = object.__new__(type(self))
        twin.__dict__.update(self.__dict__ | {r: dict(self.__dict__[r]) for r in REGISTRIES})
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """The parts without the parent, so that a copy of a part is not one of the whole model."""
        own = [name for name, part in self._parts() if (part._parent, part._name) == (self, name)]
        return self.__dict__ | {"_parent": None, "_name": "", "_own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Adopt the parts again: those that were its own, and those that have no other parent."""
        own = state.pop("_own")
        self.__dict__.update(state)
        for name, part in self._parts():
            if name in own or part._parent is None:
                self._adopt(name, part)

    def _parts(self) -> Iterator[tuple[str, Parameter | Module]]:
        yield from self._parameters.items()
        yield from self._modules.items()

    # ---- running

    def forward(self, *args: Any, **options: Any) -> Any:
        """Compute the output; subclasses define it."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **options: Any) -> Any:
        now = current_pass.get()
        if now is not None:
            if self.training and not now.counted:
                current_pass.set(now._replace(counted=True))
            return self.forward(*args, **options)
        token = current_pass.set(Pass(self.passes, None, LOCAL, self.training))
        try:
            return self.forward(*args, **options)
        finally:
            if self.training or current_pass.get().counted:  # type: ignore[union-attr]
                object.__setattr__(self, "passes", self.passes + 1)
            current_pass.reset(token)

    def train(self, mode: bool = True) -> Module:
        """Switch to training mode: Dropout is active, BatchNorm uses the batch statistics."""
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
        """The name in the root: "" for the root itself, "2.norm" for a part of a part."""
        names = [m._name for m in self._upwards() if m._parent is not None]
        return ".".join(reversed(names))

    @property
    def seed(self) -> int:
        """What weights and dropout masks are drawn from, if this is the root: 0 by default, or
        that of `nnmpi.seeded`."""
        return self._construction.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        refuse_late_seed(type(self).__name__, seed, self.named_parameters())
        object.__setattr__(self, "_construction", Construction(seed))

    @property
    def _number(self) -> int:
        """The number of modules constructed before a layer that stands alone.

        So layers that stand alone have different weights, as layers of a model have by their paths.
        It is 0 for a module with parts, for a part, and after `seed` was set.
        """
        alone = self._parent is None and not self._modules
        return self._construction.number if alone else 0

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules assigned to this one, each once, under its first name."""
        first = {m: name for name, m in reversed(self._modules.items())}
        return ((name, m) for name, m in self._modules.items() if first[m] == name)

    def children(self) -> Iterator[Module]:
        """The modules assigned to this one, each once."""
        return (m for _, m in self.named_children())

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` with each module below this one, children first, then with this one."""
        for m in self.children():
            m.apply(fn)
        fn(self)
        return self

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it; a module in two places is yielded twice."""
        yield prefix, self
        for name, m in self._modules.items():
            yield from m.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (m for _, m in self.named_modules())

    def _entries(
        self, *registries: str, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Module, str]]:
        """(full name, module, attribute) of all parameters, buffers or both, in module order."""
        for path, m in self.named_modules(prefix) if recurse else [(prefix, self)]:
            for name in (name for registry in registries for name in getattr(m, registry)):
                yield f"{path}.{name}" if path else name, m, name

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Each parameter once, under its first name; without `recurse` only its own."""
        seen: set[int] = set()
        for full, m, name in self._entries("_parameters", prefix=prefix, recurse=recurse):
            p = getattr(m, name)
            if id(p) not in seen:
                seen.add(id(p))
                yield full, p

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Each parameter once; without `recurse` only its own."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self) -> Iterator[tuple[str, Array]]:
        """Each buffer."""
        return ((full, getattr(m, name)) for full, m, name in self._entries("_buffers"))

    def tensors(self) -> Iterator[tuple[Place, Parameter | Array]]:
        """(place, parameter or buffer) of each entry of the state dict, in its order.

        The path of the place is the name of the entry, also if two names share a tensor.
        """
        for full, m, name in self._entries("_parameters", "_buffers"):
            value = getattr(m, name)
            place = value.place if isinstance(value, Parameter) else m._buffers[name]
            place = place or Place.of_whole("", value.shape)
            yield place._replace(path=full), value

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze all parameters, or train them again."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients: they become None, or else those that there are become 0."""
        for p in self.parameters():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad[...] = 0

    def to(self, dtype: Any = None, on: Backend | None = None) -> Module:
        """Convert to a type and move to a backend; the parameters move into one flat store."""
        refusals.check_dtype(dtype)
        parameters = list(self.parameters())
        first = next((p.data for p in parameters if p.is_drawn), None)
        dtype = dtype or (np.float32 if first is None else first.dtype)
        on = on or (CPU if first is None else backend.of(first))
        if parameters:
            FlatStore(parameters, dtype, on)
        self.convert_buffers(dtype, on)
        return self

    def convert_buffers(self, dtype: Any, on: Backend) -> None:
        """Convert buffers to a type, unless they hold integers, and move them to a backend."""
        for _, m, name in self._entries("_buffers"):
            old = getattr(m, name)
            object.__setattr__(m, name, on.asarray(old, dtype if old.dtype.kind == "f" else None))

    # ---- saving

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers on the host, with PyTorch's names and shapes."""
        return {p.path: np.array(on_host(value), order="C") for p, value in self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> LoadedKeys:
        """Copy a state into the model, if all names and shapes fit.

        The state holds whole tensors; the part of each that is here is copied. Without `strict`,
        names need not fit: what the state does not have keeps its values.
        """
        return load_into(list(self.tensors()), state, strict)

    register_forward_hook = refusals.hook("Module.register_forward_hook")
    register_forward_pre_hook = refusals.hook("Module.register_forward_pre_hook")
    register_full_backward_hook = refusals.hook("Module.register_full_backward_hook")

    def __repr__(self) -> str:
        lines = [f"({name}): {m!r}".replace("\n", "\n  ") for name, m in self._modules.items()]
        inner = "".join(f"\n  {line}" for line in lines)
        return f"{type(self).__name__}({self.extra_repr()}{inner}{chr(10) if lines else ''})"

    def extra_repr(self) -> str:
        """The options in its repr, in parentheses."""
        return ""
