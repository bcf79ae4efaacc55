"""Functions like `functional.relu6` from layers without parameters."""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeVar

from nnmpi.autograd import Tensor
from nnmpi.nn.module import Module
from nnmpi.nn.registries import REPLACED, constructor_options, refuse_replaced

M = TypeVar("M", bound=Module)


def of_one_call(layer: type[M]) -> Callable[..., M]:
    """Returns a class of layers for one call: `layer`, which has no parameters, without what makes
    it a part of a model. Attributes are not registered, which takes longer than small computations,
    and it does not count as a constructed module, so later layers get the same weights."""

    class Temporary(layer):  # type: ignore[misc, valid-type]
        __setattr__ = object.__setattr__

        def __new__(cls, *args: Any, **options: Any) -> Any:
            if not REPLACED.keys().isdisjoint(options):
                refuse_replaced(layer, options)
            return object.__new__(cls)

    Temporary.__name__ = layer.__name__  # for messages
    return Temporary


def function_of(layer: type[Module], *inputs: str) -> Callable[..., Tensor]:
    """Returns a function, such as `functional.relu6`, that calls a layer without parameters: of the
    inputs with the names `inputs`, then the layer's options in their order."""
    names = inputs or ("input",)
    named = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    shown = Signature([*named, *constructor_options(layer)])
    n, temporary = len(names), of_one_call(layer)

    def function(*args: Any, **options: Any) -> Tensor:
        values = args[:n]
        if len(values) < n:
            shown.bind(*args, **options)  # raises TypeError if an input is missing
            values += tuple([options.pop(name) for name in names[len(values) :]])
        y: Tensor = temporary(*args[n:], **options).forward(*values)
        return y

    described: Any = function
    described.__signature__, described.__doc__ = shown, layer.__doc__
    return function
