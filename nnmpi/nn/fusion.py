"""Fusion: runs some neighbouring layers of a Sequential as one op.

    Conv2d + ReLU + MaxPool2d(2)    Conv2d + MaxPool2d(2)    Conv2d + ReLU    Linear + ReLU
    BatchNorm + ReLU                GroupNorm + SiLU
    Linear layers in a row with at most 16,384 weights together

Values and gradients are those of the separate layers. In 16 bits they are rounded once, after the
last layer of the op; only GroupNorm + SiLU then runs as two ops. A layer with hooks runs alone.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import linear
from nnmpi.autograd.recording import recording
from nnmpi.nn.layers.activations import ReLU, SiLU
from nnmpi.nn.layers.basic import Linear
from nnmpi.nn.layers.conv import Conv2d
from nnmpi.nn.layers.norm import BatchNorm1d, BatchNorm2d, GroupNorm, InstanceNorm2d
from nnmpi.nn.layers.pooling import MaxPool2d
from nnmpi.nn.module import Module

FusedStep = Callable[[Tensor], Tensor]

FUSED = (
    (Conv2d, ReLU, MaxPool2d),
    (Conv2d, MaxPool2d),
    (Conv2d, ReLU),
    (Linear, ReLU),
    (BatchNorm2d, ReLU),
    (BatchNorm1d, ReLU),
    (GroupNorm, SiLU),
    (InstanceNorm2d, SiLU),
)
"""Layers that run as one op if they are neighbours; MaxPool2d only with adjacent 2x2 windows."""

OPTIONS: dict[type[Module], str] = {ReLU: "relu", SiLU: "silu"}
"""The option of `forward` with which the first layer of a group applies the second one, too."""


def groups(layers: Sequence[Module]) -> Iterator[Sequence[Module]]:
    """Yields the layers in groups of consecutive layers that run as one op (a row of `FUSED`), or
    alone; a layer that has hooks is never fused."""
    i = 0
    for taken in fused([Module if layer._hooks else type(layer) for layer in layers]):
        yield layers[i : i + taken]
        i += taken


def fused(types: Sequence[type[Module]]) -> Iterator[int]:
    """Yields the number of layers in each group that runs as one op, given the types of all layers.

    A subclass of a layer is not fused, since its `forward` may differ, unless its attribute
    `fuses_as` names its base class, to declare that its `forward` takes the same options.
    """
    i = 0
    while i < len(types):
        kinds = tuple(vars(kind).get("fuses_as", kind) for kind in types[i : i + 3])
        taken = next((len(group) for group in FUSED if kinds[: len(group)] == group), 1)
        yield taken
        i += taken


def steps_of(layers: list[Module]) -> Iterator[FusedStep]:
    """Yields the functions that run these layers: one for each group that runs as one op."""
    run = list[Sequence[Module]]()
    for group in groups(layers):
        if type(group[0]) is Linear:
            run.append(group)
        else:
            yield from _steps_of_linears(run)
            yield _step_of(group)
            run = []
    yield from _steps_of_linears(run)


def _step_of(group: Sequence[Module]) -> FusedStep:
    layer, *rest = group
    if not rest:
        return layer
    forward: Callable[..., Tensor] = layer.forward
    for activation, option in OPTIONS.items():
        if isinstance(rest[0], activation):
            forward = partial(forward, **{option: True})
    if isinstance(rest[-1], MaxPool2d):
        forward = _pooled(forward, rest[-1])
    return _unless_hooked(forward, layer, rest)


SMALL = 1 << 14
"""Linear layers in a row run as one op up to this many weights: calls would take longer."""


def _steps_of_linears(run: Sequence[Sequence[Any]]) -> Iterator[FusedStep]:
    """Yields the functions that run consecutive Linear layers, each perhaps followed by a ReLU: a
    single function if all have at most `SMALL` weights together, else one for each."""
    linears = [group[0] for group in run]
    weights = sum(layer.in_features * layer.out_features for layer in linears)
    steps = [_step_of(group) for group in run]
    if len(run) > 1 and weights <= SMALL:
        yield _mlp(run, steps)
    else:
        yield from steps


def _mlp(run: Sequence[Sequence[Any]], steps: Sequence[FusedStep]) -> FusedStep:
    """Returns a function that runs Linear layers and their ReLUs as one op; or one by one if a
    layer has hooks, while the graph is recorded, or if weights share memory in turn (ZeRO 3)."""
    layers = [m for group in run for m in group]
    linears, relus = [group[0] for group in run], tuple(len(group) == 2 for group in run)

    def step(x: Tensor) -> Tensor:
        # a recorder, which is not a bool, has to see each op
        if getattr(x, "ndim", 0) != 2 or not isinstance(recording.get(), bool):
            return _in_turn(steps, x)
        for m in layers:
            if m._hooks or "forward" in m.__dict__:
                return _in_turn(steps, x)
        parameters = []
        for m in linears:
            for p in (m.weight, m.bias):
                if p is not None and p.store is not None and p.store.is_shared:
                    return _in_turn(steps, x)
                parameters.append(p)
        return apply(linear.mlp, x, *parameters, relus=relus)

    return step


def _pooled(forward: Callable[..., Tensor], pool: Any) -> FusedStep:
    """Returns a function of a convolution and its max-pool: one op if the windows are 2x2."""
    fused = partial(forward, pool=True)

    def step(x: Tensor) -> Tensor:
        if pool.is_2x2:
            return fused(x)
        y: Tensor = pool(forward(x))
        return y

    return step


def _unless_hooked(fused: FusedStep, layer: Module, rest: Sequence[Module]) -> FusedStep:
    """Runs `layer` and `rest` by the op `fused`, or one by one if a layer has hooks then."""
    second, last = rest[0], rest[-1]

    def step(x: Tensor) -> Tensor:
        if not (layer._hooks or second._hooks or last._hooks):
            return fused(x)
        return _in_turn((layer, *rest), x)

    return step


def _in_turn(steps: Sequence[FusedStep], x: Tensor) -> Tensor:
    for step in steps:
        x = step(x)
    return x
