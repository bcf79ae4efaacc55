"""ModelPart: the part of a model that this rank has, as pipeline stages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from nnmpi.data.loader import WantedFields
from nnmpi.nn import Module
from nnmpi.nn.graph import Edge
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.state import everything
from nnmpi.parallel.arrangement.arrangement import Arrangement

Boundary: TypeAlias = tuple[Edge, ...]
"""The tensors from a stage to the next, in order; gradients go back."""


def boundaries_of(a: Arrangement, at: Mapping[str, int]) -> list[Boundary]:
    """Returns the tensors at each boundary of stages, shaped for ranks at `at`."""

    def here(e: int) -> Edge:
        axes = zip(a.graph.edges[e].axes, a.local_shape(e, 1, at), strict=True)
        return a.graph.edges[e]._replace(axes=tuple(axis._replace(size=n) for axis, n in axes))

    return [tuple(map(here, stage.takes)) for stage in a.division.stages[1:]]


class ModelPart(NamedTuple):
    """The part of a model that this rank has: its stages; without a pipeline, stage 0 is all.

    model        the whole tree of modules, in which only this rank's stages have values
    stages       a dict: number of a stage of this rank -> the stage as a module
    held         (path): True for a parameter or buffer that this rank has
    facts        how the model was cut, for the start event
    boundaries   for each pair of consecutive stages: the tensors that pass between them
    place        the rank along pp of each stage
    positions    the positions of sequences that this rank has; None: all
    """

    model: Module
    stages: Mapping[int, Module]
    held: Callable[[str], bool] = everything
    tied: Sequence[tuple[Parameter, tuple[int, ...]]] = ()
    """Parameters that stages of several ranks use, each with the coordinates of these ranks along
    pp; in the same order on all ranks, since a Comm is made for each."""
    facts: Mapping[str, Any] = {}
    boundaries: Sequence[Boundary] = ()
    place: Sequence[int] = (0,)
    positions: np.ndarray | None = None
    follow: Callable[[], object] = lambda: None
    """Called before a pass: if attributes of modules have changed since the cut, stages use the new
    ones."""

    @classmethod
    def whole(cls, model: Module) -> Self:
        """Returns the part of a rank that has the whole model, as stage 0."""
        return cls(model, {0: model})

    @property
    def fields(self) -> WantedFields:
        """The fields of a batch that this rank's stages need: inputs first, labels last."""
        return WantedFields(0 in self.stages, len(self.boundaries) in self.stages, self.positions)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of the stages of this rank, each once."""
        parameters = dict.fromkeys(p for m in self.stages.values() for p in m.parameters())
        return [p for p in parameters if self.held(p.place.path)]
