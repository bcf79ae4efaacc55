"""Sequential, which runs some neighbouring layers as one op."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeGuard

from nnmpi.autograd import Tensor
from nnmpi.kernels import progress_hook
from nnmpi.nn.containers import NumberedLayers
from nnmpi.nn.layers.activations import ReLU
from nnmpi.nn.layers.basic import Linear
from nnmpi.nn.layers.conv import Conv2d
from nnmpi.nn.layers.pooling import MaxPool2d
from nnmpi.nn.module import Module

Step = Callable[[Tensor], Tensor]


class Sequential(NumberedLayers):
    """Layers one after the other; the first may take several inputs.

    Some neighbours run as one op (`FUSED`), with the values and gradients of the
    separate layers.
    """

    _steps: tuple[Callable[..., Tensor], list[Step]] | None = None
    """The functions to call: the first takes what the Sequential is called with."""

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

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        steps = self._steps
        if steps is None:
            first, *others = [*steps_of(list(self))] or [lambda x: x]
            steps = first, others
            object.__setattr__(self, "_steps", steps)
        progress = progress_hook.get()
        x = steps[0](*inputs, **named)
        progress()
        for step in steps[1]:
            x = step(x)
            progress()
        return x

    def _slice(self, layers: list[Module]) -> Module:
        return Sequential(*layers)


def only_runs_layers(module: Module) -> TypeGuard[Sequential]:
    """Whether it is a Sequential with no `forward` of its own."""
    return isinstance(module, Sequential) and type(module).forward is Sequential.forward


def forget_steps(model: Module) -> None:
    """Lets the Sequentials of a model look up again how to run their layers, which have changed."""
    for m in model.modules():
        if isinstance(m, Sequential):
            object.__setattr__(m, "_steps", None)


FUSED = (
    (Conv2d, ReLU, MaxPool2d),
    (Conv2d, MaxPool2d),
    (Conv2d, ReLU),
    (Linear, ReLU),
)
"""Neighbours that run as one op; MaxPool2d only with a window of 2x2."""


def groups(layers: Sequence[Module]) -> Iterator[Sequence[Module]]:
    """The layers in groups: those that run as one op together (`FUSED`), each other one alone,
    and so one that has hooks."""
    i = 0
    for taken in fused([Module if layer._hooks else type(layer) for layer in layers]):
        yield layers[i : i + taken]
        i += taken


def fused(types: Sequence[type[Module]]) -> Iterator[int]:
    """How many layers each group has, by the types of all layers.

    Subclasses of these are not fused, since they may have another `forward`, but for those that
    say in `fuses_as` whose options their own `forward` takes.
    """
    i = 0
    while i < len(types):
        kinds = tuple(vars(kind).get("fuses_as", kind) for kind in types[i : i + 3])
        taken = next((len(group) for group in FUSED if kinds[: len(group)] == group), 1)
        yield taken
        i += taken


def steps_of(layers: list[Module]) -> Iterator[Step]:
    """One function for each group of layers."""
    for layer, *rest in groups(layers):
        if not rest:
            yield layer
            continue
        forward: Callable[..., Tensor] = layer.forward
        if isinstance(rest[0], ReLU):
            forward = partial(forward, relu=True)
        if isinstance(rest[-1], MaxPool2d):
            forward = _pooled(forward, rest[-1])
        yield _unless_hooked(forward, layer, rest)


def _pooled(forward: Callable[..., Tensor], pool: Any) -> Step:
    """A convolution and its max-pool: one op if the window is 2x2 at the time of the call."""
    fused = partial(forward, pool=True)

    def step(x: Tensor) -> Tensor:
        if pool.is_2x2:
            return fused(x)
        y: Tensor = pool(forward(x))
        return y

    return step


def _unless_hooked(fused: Step, layer: Module, rest: Sequence[Module]) -> Step:
    """Layers as one op, if none of them has hooks at the time of the call."""
    second, last = rest[0], rest[-1]

    def step(x: Tensor) -> Tensor:
        if not (layer._hooks or second._hooks or last._hooks):
            return fused(x)
        for one in (layer, *rest):
            x = one(x)
        return x

    return step
