"""Lists and dictionaries of modules and parameters that are part of a model, and Branches, which
join the outputs of several modules."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Self

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops.shape import JOINS, joined
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class _Numbered(Module):
    """The base of lists: children under the names "0", "1", ..."""

    registry: ClassVar[str] = "_modules"

    def __init__(self, parts: Iterable[Any] = ()) -> None:
        self.extend(parts)

    def append(self, part: Any) -> Self:
        """Adds a child at the end."""
        raise NotImplementedError

    def extend(self, parts: Iterable[Any]) -> Self:
        """Adds children at the end."""
        for part in parts:
            self.append(part)
        return self

    def __len__(self) -> int:
        return len(getattr(self, self.registry))

    def __iter__(self) -> Iterator[Any]:
        return iter([*getattr(self, self.registry).values()])

    def __setitem__(self, index: int, part: Any) -> None:
        setattr(self, [*getattr(self, self.registry)][index], part)


class NumberedLayers(_Numbered):
    """The base of ModuleList and Sequential."""

    def __init__(self, layers: Iterable[Module] = ()) -> None:
        super().__init__(layers)

    def append(self, layer: Module) -> Self:
        """Adds a layer at the end."""
        if not isinstance(layer, Module):
            raise ValueError(
                f"{type(self).__name__}: layer {len(self)} is of type {type(layer).__name__}, not "
                "a Module; layers are given as in Sequential(*layers) or ModuleList(layers)"
            )
        # after a deletion the next number may be taken
        names = (str(i) for i in range(len(self), 2 * len(self) + 1))
        setattr(self, next(n for n in names if n not in self._modules), layer)
        return self

    def __getitem__(self, index: int | slice) -> Module:
        """Returns one layer, or for a slice a new module with its layers, which stay part of this
        one too."""
        layers = list(self)
        return self._slice(layers[index]) if isinstance(index, slice) else layers[index]

    def _slice(self, layers: list[Module]) -> Module:
        raise NotImplementedError


class ModuleList(NumberedLayers):
    """A list of layers that is part of the model, for another module's `forward` to run."""

    def _slice(self, layers: list[Module]) -> Module:
        return ModuleList(layers)


class ModuleDict(Module, MutableMapping[str, Module]):
    """A dictionary of modules that is part of the model, in the order of insertion."""

    __eq__, __hash__ = Module.__eq__, Module.__hash__  # a Mapping's would not be hashable

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        self.update(modules)

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __delitem__(self, key: str) -> None:
        if key not in self._modules:
            raise KeyError(key)
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)


class ParameterList(_Numbered):
    """A list of parameters that is part of the model, under the names "0", "1", ..."""

    registry = "_parameters"

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__(values)

    def append(self, value: Any) -> Self:
        """Adds a parameter at the end; an array or a tensor is converted to one."""
        setattr(self, str(len(self)), _parameter(value))
        return self

    def __getitem__(self, index: int) -> Any:
        return [*self][index]

    def __setitem__(self, index: int, value: Any) -> None:
        super().__setitem__(index, _parameter(value))

    def extra_repr(self) -> str:
        return ", ".join(str(p.shape) for p in self)


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


class Branches(ModuleDict):
    """Named modules that all get the same input, and whose outputs are joined.

              ┌─► a ─┐
        x ────┼─► b ─┼─► sum, mean, concat, stack ──► y
              └─► c ─┘

    join  "sum" or "mean" of the outputs, "concat" along the axis `dim`, or "stack" along a new one

    Called with a dict, or with keyword arguments, each branch gets the input under its own name.
    With tensor parallelism whole branches go to different ranks: see `parallel/tensor/branches.py`.
    """

    def __init__(
        self,
        branches: Mapping[str, Module] | Iterable[tuple[str, Module]],
        join: str = "sum",
        dim: int = -1,
    ) -> None:
        if join not in JOINS:
            raise ValueError(f"Branches: join={join!r} must be one of {', '.join(JOINS)}")
        if dim == 0:
            raise ValueError("Branches: dim=0 is the axis of the samples: give another axis")
        self.join, self.dim = join, dim
        super().__init__(branches)
        if not len(self):
            raise ValueError("Branches: there is no branch: give a dict of modules")

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        given = self.given(inputs, named)
        outputs = [branch(*given[name]) for name, branch in self.items()]
        return apply(joined, *outputs, join=self.join, axis=self.dim)

    def given(
        self, inputs: tuple[Any, ...], named: Mapping[str, Any]
    ) -> dict[str, tuple[Any, ...]]:
        """Returns the arguments of each branch, by its name."""
        if not named and len(inputs) == 1 and isinstance(inputs[0], Mapping):
            named = inputs[0]
        if not named:
            return dict.fromkeys(self, inputs)
        if {*named} != {*self}:
            raise ValueError(
                f"Branches {self.path}: inputs {', '.join(named)} for branches {', '.join(self)}: "
                "give one input for each branch, under its name, or one tensor for all"
            )
        return {name: (named[name],) for name in self}

    def extra_repr(self) -> str:
        dim = f", dim={self.dim}" * (self.join in ("concat", "stack"))
        return f"join={self.join!r}{dim}"
