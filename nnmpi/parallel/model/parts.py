"""The part of a model on each rank: ModelPart, its pipeline stages; PartTable, who has which
ranges.

Tensor parallelism cuts a tensor into parts along tp. Ranks along dp have copies of a part, or each
has ranges of it, in memory order:

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
    """Returns True: the `held` of a rank that has a part of every tensor."""
    return True


def which_held(tensors: Placed, held: Callable[[str], bool]) -> list[bool]:
    """Tells for each of `Module.tensors()` whether this rank has a part of it.

    A tensor with several names is held if one of the names is.
    """
    ids = {id(tensor) for place, tensor in tensors if held(place.path)}
    return [id(tensor) in ids for _, tensor in tensors]


Boundary: TypeAlias = tuple[Edge, ...]
"""The tensors that one stage sends to the next, in this order. The gradients of those that require
one are sent back."""


def boundaries_of(a: Arrangement, at: Mapping[str, int]) -> list[Boundary]:
    """The tensors that cross between all stages, with the local shapes of ranks at the mesh
    coordinates `at`."""

    def here(e: int) -> Edge:
        axes = zip(a.graph.edges[e].axes, a.local_shape(e, 1, at), strict=True)
        return a.graph.edges[e]._replace(axes=tuple(axis._replace(size=n) for axis, n in axes))

    return [tuple(map(here, stage.takes)) for stage in a.division.stages[1:]]


class ModelPart(NamedTuple):
    """The pipeline stages of this rank; without a pipeline, stage 0 is the whole model."""

    model: Module  # the whole tree of modules; only this rank's stages have values
    stages: Mapping[int, Module]  # by number
    held: Callable[[str], bool] = everything  # True for paths of tensors on this rank
    tied: Sequence[tuple[Parameter, tuple[int, ...]]] = ()
    """Parameters that stages of several ranks use, each with the pp coordinates of these ranks; in
    the same order on all ranks, since each has a Comm."""
    facts: Mapping[str, Any] = {}  # the fields of the start event that describe the cut
    boundaries: Sequence[Boundary] = ()  # between the stages of all ranks
    place: Sequence[int] = (0,)  # the rank along pp of each stage
    positions: np.ndarray | None = None  # of sequences, on this rank; None: all
    follow: Callable[[], object] = lambda: None
    """Called before a pass: lets stages use attributes as they are now."""

    @classmethod
    def whole(cls, model: Module) -> Self:
        """The part of a rank that has the whole model."""
        return cls(model, {0: model})

    @property
    def fields(self) -> Fields:
        """The fields of a batch that the stages of this rank need: inputs for the first stage,
        labels for the last."""
        return Fields(0 in self.stages, len(self.boundaries) in self.stages, self.positions)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of the stages of this rank, each once."""
        parameters = dict.fromkeys(p for m in self.stages.values() for p in m.parameters())
        return [p for p in parameters if self.held(p.place.path)]


class PartTable:
    """The ranges of a model's parameters and buffers that each rank of `comm` can read without
    communication. The constructor is collective.

    Its argument `held(path)` returns True if this rank has a part of the tensor at that path of the
    state dict: a pipeline stage has only the tensors of its own layers, and the values of others
    are never read.

    held     the result of `held` for each of `tensors`
    ranges   (rank, range) of all ranks; several ranks may have the same range
    """

    def __init__(self, model: Module, comm: Comm, held: Callable[[str], bool] = everything) -> None:
        self.comm, self._model, self.tensors = comm, model, [*model.tensors()]
        self.held = which_held(self.tensors, held)
        rows = zip(self.tensors, self.held, strict=True)
        local = [row for row, is_held in rows if is_held]
        self._ids = {id(tensor) for _, tensor in local}
        readable = [readable_range for row in local for readable_range in _readable(*row)]
        by_rank = enumerate(gather_objects(comm, readable))
        self.ranges = [
            (rank, readable_range) for rank, ranges in by_rank for readable_range in ranges
        ]

    def current(self) -> dict[str, Any]:
        """The tensors by path, as they are now: a module may have assigned or deleted one since the
        table was made."""
        known = {place.path: tensor for place, tensor in self.tensors}
        return known | {place.path: tensor for place, tensor in self._model.tensors()}

    def has(self, p: Parameter) -> bool:
        """True if this rank has a part of p."""
        return id(p) in self._ids

    def first_copies(self) -> dict[str, int]:
        """For each tensor that this rank has a part of, by path: the lowest rank that has the same
        part."""
        first = dict[tuple[str, Part], int]()
        for rank, held in self.ranges:
            first.setdefault((held.tensor, held.box), rank)
        local = ((held.tensor, held.box) for rank, held in self.ranges if rank == self.comm.rank)
        return {key[0]: first[key] for key in local}


def memory_axes(tensor: Any) -> tuple[int, ...]:
    """The axes of a parameter or buffer in memory order."""
    return tensor.memory_axes if isinstance(tensor, Parameter) else tuple(range(tensor.ndim))


def _readable(place: Place, tensor: Any) -> list[Range]:
    """The ranges of a tensor's part that this rank can read without the others: at least one, which
    may be empty."""
    if isinstance(tensor, Parameter) and isinstance(tensor.store, FlatStore):
        return [
            elements._replace(tensor=place.path) for elements in tensor.store.readable(tensor.index)
        ]
    return [place.range()]
