"""Sequential, and which neighbours in it run as one op."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nnmpi.autograd import Tensor
from nnmpi.nn.activations import ReLU
from nnmpi.nn.layers import Conv2d, Linear, MaxPool2d
from nnmpi.nn.module import Module


class Sequential(Module):
    """Layers one after the other.

    Neighbours that one op can do together run as one (`_fuse`): the values and
    gradients are those of the layers apart.
    """

    _steps: list[Callable[[Tensor], Tensor]] | None = None

    def __init__(self, *layers: Module) -> None:
        for layer in layers:
            self.append(layer)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "_steps":
            object.__setattr__(self, "_steps", None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        object.__setattr__(self, "_steps", None)

    def forward(self, x: Tensor) -> Tensor:
        if self._steps is None:
            self._steps = list(_fuse(list(self)))
        for step in self._steps:
            x = step(x)
        return x

    def append(self, layer: Module) -> "Sequential":
        """Add a layer at the end."""
        if not isinstance(layer, Module):
            raise ValueError(
                f"Sequential: layer {len(self)} is a {type(layer).__name__}, not a Module; "
                "layers are given one by one, as in Sequential(*layers)"
            )
        names = (str(i) for i in range(len(self), 2 * len(self) + 1))
        setattr(self, next(n for n in names if n not in self._modules), layer)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._modules.values()))

    def __getitem__(self, index: int | slice) -> Module:
        """One layer, or the layers of a slice in a Sequential of their own; they stay ours too."""
        layers = list(self)
        return Sequential(*layers[index]) if isinstance(index, slice) else layers[index]

    def __setitem__(self, index: int, layer: Module) -> None:
        setattr(self, list(self._modules)[index], layer)


def _fuse(layers: list[Module]) -> Iterator[Callable[[Tensor], Tensor]]:
    """One function per group: Conv2d+ReLU+MaxPool2d(2), Conv2d+ReLU, Linear+ReLU, or one layer.

    Only these very classes are fused; a subclass may have changed `forward`.
    """
    i = 0
    while i < len(layers):
        layer, kinds = layers[i], [type(m) for m in layers[i : i + 3]]
        taken = 1
        if kinds[:2] == [Linear, ReLU]:
            yield _with(layer, relu=True)
            taken = 2
        elif kinds == [Conv2d, ReLU, MaxPool2d] and _halves(layers[i + 2]):
            yield _with(layer, relu=True, pool=True)
            taken = 3
        elif kinds[:2] == [Conv2d, MaxPool2d] and _halves(layers[i + 1]):
            yield _with(layer, pool=True)
            taken = 2
        elif kinds[:2] == [Conv2d, ReLU]:
            yield _with(layer, relu=True)
            taken = 2
        else:
            yield layer
        i += taken


def _with(layer: Module, **options: bool) -> Callable[[Tensor], Tensor]:
    """The layer with these options; a partial, so that a copy of the model copies it too."""
    forward: Callable[..., Tensor] = layer.forward
    return partial(forward, **options)


def _halves(pool: Module) -> bool:
    return isinstance(pool, MaxPool2d) and (pool.kernel_size, pool.stride, pool.padding) == (
        2,
        2,
        0,
    )
