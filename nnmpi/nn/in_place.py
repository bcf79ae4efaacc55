"""The option `inplace=True`: the result replaces the values of the input tensor."""

from collections.abc import Callable
from typing import Any

from nnmpi.autograd import Tensor, as_tensor
from nnmpi.autograd.recording import Outdated, recording
from nnmpi.nn.passes import current_pass


def applied(function: Callable[[Tensor], Tensor], input: Any, inplace: bool) -> Tensor:
    """Returns function(input). With `inplace` the result is written into the input tensor itself,
    so that all views of it see the new values, and the input is returned."""
    x = as_tensor(input)
    if not inplace:
        return function(x)
    y = function(x.before_write())
    if y.node is not None and x.may_become(y):
        return x.become(y)
    if y.node is None and _is_alone(x, y):
        x._array = y._array  # not copied
    else:
        x[...] = y
    return x


def _is_alone(x: Tensor, y: Tensor) -> bool:
    """True if x can take over the array of y: none shares the memory of x, and all fits."""
    old, new = x._array, y._array
    return (
        x.is_replaceable
        and (x.node is not None or not x.requires_grad)  # an optimizer may hold the array of a leaf
        and x.storage.sharing is None
        and (new.shape, new.dtype) == (old.shape, old.dtype)
    )


def applied_by_layer(function: Callable[[Tensor], Tensor], x: Any, inplace: bool) -> Tensor:
    """Returns function(x); with `inplace` writes it into x, except in a Trainer."""
    return _written_by_layer(function, x) if inplace else function(as_tensor(x))


def _written_by_layer(function: Callable[[Tensor], Tensor], x: Any) -> Tensor:
    """Writes function(x) into x, the input of a layer, and returns x.

    In a Trainer, which may cut a model between any two layers, the result is a new tensor. A model
    whose `forward` uses x after the layer is refused when its graph is recorded.
    """
    if not isinstance(recording.get(), bool):
        y = function(as_tensor(x))
        x.storage.sharing_record().outdated = Outdated.INPLACE
        return y
    current, x = current_pass.get(), as_tensor(x)
    is_leaf = x.requires_grad and x.node is None  # the input of a unit that runs alone
    return applied(function, x, not is_leaf and (current is None or current.samples is None))
