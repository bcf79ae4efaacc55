"""Makes functions like `functional.relu6` from layers without parameters: a call constructs the
layer and runs it."""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeVar

from nnmpi.autograd import Tensor
from nnmpi.nn.module import Module
from nnmpi.nn.registries import constructor_options
from nnmpi.nn.seeding import seed_state

M = TypeVar("M", bound=Module)


def temporary(layer: Callable[..., M], *args: Any, **options: Any) -> M:
    """Returns a layer for one call. It is not counted as a constructed module, so later layers get
    the same weights as without the call."""
    saved = seed_state.get()
    try:
        return layer(*args, **options)
    finally:
        seed_state.set(saved)


def function_of(layer: type[Module], *inputs: str) -> Callable[..., Tensor]:
    """Returns a function, such as `functional.relu6`, that calls a layer without parameters. Its
    arguments are first the layer's inputs, with the names `inputs` (by default one, "input"), then
    the layer's options in their order."""
    named = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in inputs or ("input",)]
    shown = Signature([*named, *constructor_options(layer)])

    def function(*args: Any, **options: Any) -> Tensor:
        given = shown.bind(*args, **options).arguments
        values = [given.pop(p.name) for p in named]
        y: Tensor = temporary(layer, **given).forward(*values)
        return y

    described: Any = function
    described.__signature__, described.__doc__ = shown, layer.__doc__
    return function
