"""The parts of a model on each rank: ModelPart, its stages here; PartTable, parts of tensors.

A tensor of a model is in parts along tp, and a part is in several memories along dp. Of a part, in
the order of its memory, a rank has some stretches:

    part 0    rank 0  [ ####.... ]   rank 1  [ ....#### ]     ZeRO, or the memory of a node
    part 1    rank 2  [ ######## ]   rank 3  [ ######## ]     copies: the first rank sends
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from nnmpi.comm import Comm
from nnmpi.data.loader import Fields
from nnmpi.nn import Module
from nnmpi.nn.graph import Edge
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Part, Place, Range
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement

Placed: TypeAlias = Sequence[tuple[Place, Any]]
"""Parameters and buffers with their places."""


def everything(path: str) -> bool:
    """Whether a rank has a part of a tensor, if it has one of all."""
    return True


def which_held(tensors: Placed, held: Callable[[str], bool]) -> list[bool]:
    """Whether this rank has a part of each of `Module.tensors()`.

    A tensor under several names is held if one of them is.
    """
    ids = {id(tensor) for place, tensor in tensors if held(place.path)}
    return [id(tensor) in ids for _, tensor in tensors]


Boundary: TypeAlias = tuple[Edge, ...]
"""The tensors that cross between two stages, in the order in which they are sent. Gradients of
those that require one come back."""


def boundaries_of(a: Arrangement, at: Mapping[str, int]) -> list[Boundary]:
    """The tensors that cross between all stages, as ranks with these coordinates have them."""

    def here(e: int) -> Edge:
        axes = zip(a.graph.edges[e].axes, a.local_shape(e, 1, at), strict=True)
        return a.graph.edges[e]._replace(axes=tuple(axis._replace(size=n) for axis, n in axes))

    return [tuple(map(here, stage.takes)) for stage in a.division.stages[1:]]


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
    positions: np.ndarray | None = None  # of sequences, that this rank has; None: all

    @classmethod
    def whole(cls, model: Module) -> Self:
        """A model that is not cut."""
        return cls(model, {0: model})

    @property
    def fields(self) -> Fields:
        """The fields of a batch that the stages of this rank need."""
        return Fields(0 in self.stages, len(self.boundaries) in self.stages, self.positions)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of the stages of this rank, each once."""
        parameters = dict.fromkeys(p for m in self.stages.values() for p in m.parameters())
        return [p for p in parameters if self.held(p.place.path)]


class PartTable:
    """The parts of a model's parameters and buffers on the ranks of `comm`. Every rank makes it.

    `held` tells by its path in the state dict whether this rank has a part of a tensor: a pipeline
    stage has the tensors of its own layers only, and no number of others is read.

    held     whether this rank has a part of each tensor
    ranges   what each rank can read alone, with its number
    """

    def __init__(self, model: Module, comm: Comm, held: Callable[[str], bool] = everything) -> None:
        self.comm, self._model, self.tensors = comm, model, [*model.tensors()]
        self.held = which_held(self.tensors, held)
        both = zip(self.tensors, self.held, strict=True)
        here = [row for row, is_held in both if is_held]
        self._ids = {id(tensor) for _, tensor in here}
        readable = [readable_range for row in here for readable_range in _readable(*row)]
        of_ranks = enumerate(gather_objects(comm, readable))
        self.ranges = [
            (rank, readable_range) for rank, ranges in of_ranks for readable_range in ranges
        ]

    def current(self) -> dict[str, Any]:
        """The tensors by path: a module may have assigned another array since, or dropped one."""
        known = {place.path: tensor for place, tensor in self.tensors}
        return known | {place.path: tensor for place, tensor in self._model.tensors()}

    def has(self, p: Parameter) -> bool:
        """Whether this rank has a part of p."""
        return id(p) in self._ids

    def first_copies(self) -> dict[str, int]:
        """By path, of each tensor of which this rank has a part, the lowest rank with that part."""
        first = dict[tuple[str, Part], int]()
        for rank, numbers in self.ranges:
            first.setdefault((numbers.tensor, numbers.box), rank)
        held_here = (
            (numbers.tensor, numbers.box) for rank, numbers in self.ranges if rank == self.comm.rank
        )
        return {key[0]: first[key] for key in held_here}


def memory_axes(tensor: Any) -> tuple[int, ...]:
    """The axes of a parameter or a buffer in the order of memory."""
    return tensor.memory_axes if isinstance(tensor, Parameter) else tuple(range(tensor.ndim))


def _readable(place: Place, tensor: Any) -> list[Range]:
    """The ranges of a part that this rank can read alone; at least one, perhaps empty."""
    if isinstance(tensor, Parameter) and isinstance(tensor.store, FlatStore):
        return [
            numbers._replace(tensor=place.path) for numbers in tensor.store.readable(tensor.index)
        ]
    return [place.range()]
