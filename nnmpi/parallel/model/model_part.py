"""ModelPart: what this rank has of a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from nnmpi.data.loader import Fields
from nnmpi.nn import Module
from nnmpi.nn.graph import Edge
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.model.parts import everything

Boundary: TypeAlias = tuple[Edge, ...]
"""The tensors that cross between two stages, in the order in which they are sent. Gradients of
those that require one come back."""


class ModelPart(NamedTuple):
    """The stages of this rank; of a model that is not cut, one stage is all of it."""

    model: Module  # the whole tree of modules; only parameters of own stages have values
    stages: Mapping[int, Module]  # by number
    held: Callable[[str], bool] = everything  # whether this rank has a tensor, by its path
    tied: Sequence[tuple[Parameter, tuple[int, ...]]] = ()
    """Parameters that stages of several ranks use, on all ranks in one order: each with its ranks
    along pp."""
    facts: Mapping[str, Any] = {}  # what the start event says of the cut
    boundaries: Sequence[Boundary] = ()  # between the stages of all ranks

    @classmethod
    def whole(cls, model: Module) -> Self:
        """A model that is not cut."""
        return cls(model, {0: model})

    @property
    def fields(self) -> Fields:
        """What of a batch the stages of this rank need."""
        return Fields(x=0 in self.stages, y=len(self.boundaries) in self.stages)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of the stages of this rank, each once."""
        return list(dict.fromkeys(p for m in self.stages.values() for p in m.parameters()))
