"""Lists and dictionaries of modules and parameters that are part of a model."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Self

from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class _Numbered(Module):
    """The base of containers whose items are children with the names "0", "1", ..."""

    registry: ClassVar[str] = "_modules"

    def __init__(self, parts: Iterable[Any] = ()) -> None:
        self.extend(parts)

    def append(self, part: Any) -> Self:
        """Adds an item at the end, and returns the container."""
        raise NotImplementedError

    def extend(self, parts: Iterable[Any]) -> Self:
        """Adds several items at the end, and returns the container."""
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
    """The base of ModuleList and Sequential: layers "0", "1", ..., or named by a dictionary."""

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
        """Returns one layer; for a slice, a new module that shares these layers with this one."""
        return self._slice(index) if isinstance(index, slice) else list(self)[index]

    def _slice(self, places: slice) -> Module:
        raise NotImplementedError


class ModuleList(NumberedLayers):
    """A list of layers that is part of the model, for another module's `forward` to run."""

    def _slice(self, places: slice) -> Module:
        return ModuleList(list(self)[places])


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
