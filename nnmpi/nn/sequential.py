"""ModuleList, and Sequential, which runs some neighbouring layers as one op."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self

from nnmpi.autograd import Tensor
from nnmpi.nn.activations import ReLU
from nnmpi.nn.layers import Conv2d, Linear, MaxPool2d
from nnmpi.nn.module import Module

Step = Callable[[Tensor], Tensor]


class _Numbered(Module):
    """The base of both: a list of layers under the names "0", "1", ..."""

    def __init__(self, layers: Iterable[Module]) -> None:
        for layer in layers:
            self.append(layer)

    def append(self, layer: Module) -> Self:
        """Add a layer at the end."""
        if not isinstance(layer, Module):
            raise ValueError(
                f"{type(self).__name__}: layer {len(self)} is a {type(layer).__name__}, not a "
                "Module; layers are given as in Sequential(*layers) or ModuleList(layers)"
            )
        names = (str(i) for i in range(len(self), 2 * len(self) + 1))
        setattr(self, next(n for n in names if n not in self._modules), layer)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._modules.values()))

    def __getitem__(self, index: int | slice) -> Module:
        """One layer, or a new module with the layers of a slice, which stay part of this one."""
        layers = list(self)
        return self._slice(layers[index]) if isinstance(index, slice) else layers[index]

    def __setitem__(self, index: int, layer: Module) -> None:
        setattr(self, list(self._modules)[index], layer)

    def _slice(self, layers: list[Module]) -> Module:
        raise TypeError(f"{type(self).__name__} does not define _slice")


class ModuleList(_Numbered):
    """A list of layers that is part of the model, for another module's `forward` to run."""

    def __init__(self, layers: Iterable[Module] = ()) -> None:
        super().__init__(layers)

    def _slice(self, layers: list[Module]) -> Module:
        return ModuleList(layers)


class Sequential(_Numbered):
    """Layers one after the other.

    Some neighbours run as one op (`_fuse`), with the values and gradients of the
    separate layers.
    """

    _steps: list[Step] | None = None

    def __init__(self, *layers: Module) -> None:
        super().__init__(layers)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        object.__setattr__(self, "_steps", None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        object.__setattr__(self, "_steps", None)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_steps": None}

    def forward(self, x: Tensor) -> Tensor:
        if self._steps is None:
            object.__setattr__(self, "_steps", list(_fuse(list(self))))
        for step in self._steps or ():
            x = step(x)
        return x

    def _slice(self, layers: list[Module]) -> Module:
        return Sequential(*layers)


def _fuse(layers: list[Module]) -> Iterator[Step]:
    """One function for each layer, and for each group of layers that one op computes:

    Conv2d + ReLU + MaxPool2d(2), Conv2d + MaxPool2d(2), Conv2d + ReLU, Linear + ReLU.

    Subclasses of these are not fused, since they may have another `forward`.
    """
    i = 0
    while i < len(layers):
        layer, kinds = layers[i], [type(m) for m in layers[i : i + 3]]
        forward: Callable[..., Tensor] = layer.forward
        taken = 1
        if kinds == [Conv2d, ReLU, MaxPool2d]:
            yield _pooled(partial(forward, relu=True), layers[i + 2])
            taken = 3
        elif kinds[:2] == [Conv2d, MaxPool2d]:
            yield _pooled(forward, layers[i + 1])
            taken = 2
        elif kinds[:2] in ([Conv2d, ReLU], [Linear, ReLU]):
            yield partial(forward, relu=True)
            taken = 2
        else:
            yield layer
        i += taken


def _pooled(forward: Callable[..., Tensor], pool: Any) -> Step:
    """A convolution and its max-pool: one op if the window is 2x2 at the time of the call."""
    fused = partial(forward, pool=True)

    def step(x: Tensor) -> Tensor:
        if pool.kernel_size == pool.stride == 2 and pool.padding == 0:
            return fused(x)
        y: Tensor = pool(forward(x))
        return y

    return step
