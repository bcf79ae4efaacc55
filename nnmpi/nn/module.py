"""Module: a tree of layers with parameters and buffers, saved under PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.backend import CPU, Array, Backend
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore


class Pass(NamedTuple):
    """One forward pass through a whole model: what keyed randomness depends on.

    `samples` are the batch's global sample indices; None stands for 0, 1, 2, ...
    """

    step: int
    samples: np.ndarray | None = None


current_pass: ContextVar[Pass | None] = ContextVar("nnmpi_pass", default=None)
"""The pass under way; without a trainer each model counts its own training passes."""


class Module:
    """A layer or a whole model: subclass it, assign parameters and modules, define `forward`.

    `seed` of the root is what every weight and every dropout mask is drawn from.
    """

    training: bool = True
    seed: int = 0

    def __new__(cls, *args: Any, **options: Any) -> Module:
        """Make the books before __init__, so that a subclass need not call super().__init__()."""
        self = super().__new__(cls)
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_parent", None)
        object.__setattr__(self, "_name", "")
        object.__setattr__(self, "passes", 0)
        return self

    _parameters: dict[str, Parameter]
    _buffers: dict[str, Any]
    _modules: dict[str, Module]
    _parent: Module | None
    _name: str
    passes: int

    def __setattr__(self, name: str, value: Any) -> None:
        book = self._book(name, value)
        for other in (self._parameters, self._buffers, self._modules):
            if other is not book:
                other.pop(name, None)
        if book is not None:
            book[name] = value  # what takes another's place keeps its place in the order
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

    def _book(self, name: str, value: Any) -> dict[str, Any] | None:
        """Where an attribute is entered: among parameters, modules, buffers, or nowhere."""
        if isinstance(value, Parameter):
            return self._parameters
        if isinstance(value, Module):
            return self._modules
        for book, kind in ((self._parameters, "Parameter"), (self._modules, "Module")):
            if name in book and value is not None:
                raise ValueError(
                    f"{type(self).__name__}.{name} is a {kind} and cannot become a "
                    f"{type(value).__name__}: assign a {kind} or None"
                    f"{', or write into .data' if kind == 'Parameter' else ''}"
                )
        return self._buffers if name in self._buffers and value is not None else None

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        for book in (self._parameters, self._buffers, self._modules):
            book.pop(name, None)

    def register_buffer(self, name: str, value: Array) -> None:
        """An array that is saved with the model but not trained."""
        self._buffers[name] = None
        object.__setattr__(self, name, value)

    # ---- running it

    def forward(self, *args: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any) -> Any:
        if current_pass.get() is not None:
            return self.forward(*args)
        token = current_pass.set(Pass(self.passes))
        try:
            return self.forward(*args)
        finally:
            current_pass.reset(token)
            if self.training:
                object.__setattr__(self, "passes", self.passes + 1)

    def train(self, mode: bool = True) -> Module:
        """Switch to training: dropout drops, batch normalisation uses the batch."""
        for m in self.modules():
            object.__setattr__(m, "training", mode)
        return self

    def eval(self) -> Module:
        """Switch to evaluation."""
        return self.train(False)

    # ---- the tree

    @property
    def root(self) -> Module:
        """The outermost module this one is part of."""
        m = self
        while m._parent is not None:
            m = m._parent
        return m

    @property
    def path(self) -> str:
        """Its name from the root: "" for the root itself, "2.norm" for a part of a part."""
        names, m = [], self
        while m._parent is not None:
            names.append(m._name)
            m = m._parent
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

    def _entries(self, book: str) -> Iterator[tuple[str, Module, str]]:
        """(full name, module, attribute) of all parameters or buffers."""
        for prefix, m in self.named_modules():
            for name in getattr(m, book):
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

    def zero_grad(self) -> None:
        """Clear every gradient."""
        for p in self.parameters():
            p.grad = None

    def to(self, dtype: Any = None, on: Backend | None = None) -> Module:
        """Move everything to a type and a backend, the parameters into a flat store."""
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
        for prefix, m in self.named_modules():
            for name in (*m._parameters, *m._buffers):
                value = getattr(m, name)
                value = value.data if isinstance(value, Tensor) else value
                full = f"{prefix}.{name}" if prefix else name
                state[full] = np.array(backend.to_host(value), order="C")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state: all names and shapes must fit, or nothing is changed."""
        targets: dict[str, Any] = {}
        values: dict[str, np.ndarray] = {}
        problems = []
        for book in ("_parameters", "_buffers"):
            for full, m, name in self._entries(book):
                target = getattr(m, name)
                shape = tuple(target.shape)
                targets[full] = target
                if full not in state:
                    problems.append(f"{full} {shape} is missing")
                    continue
                value = values[full] = _on_host(state[full])
                if value.shape != shape:
                    problems.append(f"{full} is {shape} here and {value.shape} there")
                elif value.dtype.kind not in "fiub":
                    problems.append(f"{full} holds {value.dtype}, not numbers")
        problems += [f"{name} is not part of this model" for name in state if name not in targets]
        if problems:
            more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
            raise ValueError(f"state does not fit: {'; '.join(problems[:4])}{more}")
        for full, target in targets.items():
            _assign(target, values[full])

    def __repr__(self) -> str:
        lines = [f"({name}): {m!r}".replace("\n", "\n  ") for name, m in self._modules.items()]
        inner = "".join(f"\n  {line}" for line in lines)
        return f"{type(self).__name__}({self.extra_repr()}{inner}{chr(10) if lines else ''})"

    def extra_repr(self) -> str:
        """What stands between the parentheses of its repr."""
        return ""


def _on_host(value: Any) -> np.ndarray:
    """An entry of a state as a NumPy array: a tensor, an array of any library, or numbers."""
    value = value.data if isinstance(value, Tensor) else value
    return backend.to_host(value) if hasattr(value, "get") else np.asarray(value)


def _assign(target: Any, value: np.ndarray) -> None:
    """Write a host array into a parameter or a buffer, on whatever backend it is."""
    array = target.data if isinstance(target, Tensor) else target
    array[...] = backend.of(array).asarray(value, array.dtype)
    if isinstance(target, Tensor):
        target.mark_written()
