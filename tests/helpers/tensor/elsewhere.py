"""A rank that holds some tensors of a model: to read a parameter that others hold is an error."""

from collections.abc import Callable
from typing import NoReturn

from nnmpi import nn
from nnmpi.nn.state import which_held


class Elsewhere:
    """The store of parameters that other ranks hold."""

    def value(self, i: int) -> NoReturn:
        raise ValueError("this parameter is on another rank")

    grad_memory = value


def keep(model: nn.Module, held: Callable[[str], bool]) -> None:
    """Leaves the parameters whose paths are held, and spoils the buffers of others."""
    tensors = list(model.tensors())
    for (_, tensor), is_held in zip(tensors, which_held(tensors, held), strict=True):
        if is_held:
            continue
        if isinstance(tensor, nn.Parameter):
            tensor.move(Elsewhere(), 0)
        else:
            tensor[...] = 99


def stage_of(rank: int, *starts: int) -> Callable[[str], bool]:
    """The paths of a stage of a Sequential whose stages start at these units."""
    ends = (*starts[1:], 1 << 30)
    return lambda path: starts[rank] <= int(path.split(".")[0]) < ends[rank]
