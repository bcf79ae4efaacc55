"""What ranks have of a model: ModelPart, its stages here; PartTable, the parts of its tensors.

A tensor of a model is in parts along tp, and a part is in several memories along dp. Of a part, in
the order of its memory, a rank has some stretches:

    part 0    rank 0  [ ####.... ]   rank 1  [ ....#### ]     ZeRO, or the memory of a node
    part 1    rank 2  [ ######## ]   rank 3  [ ######## ]     copies: the first rank sends
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from nnmpi.comm import Comm
from nnmpi.data.loader import Fields
from nnmpi.nn import Module
from nnmpi.nn.graph import Edge
from nnmpi.nn.parameter import Parameter, in_shape
from nnmpi.nn.place import Part, Place, Range, whole
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement

WRITER = 0
"""The rank on which tensors are put together."""

Placed: TypeAlias = Sequence[tuple[Place, Any]]
"""Parameters and buffers with their places."""


Read: TypeAlias = Callable[[Range], np.ndarray]
"""What has the numbers of a range of this rank."""


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
    edges = a.graph.edges
    return [
        tuple(resized(edges[e], a.local_shape(e, 1, at)) for e in stage.takes)
        for stage in a.division.stages[1:]
    ]


def resized(edge: Edge, lengths: Sequence[int]) -> Edge:
    """The edge with axes of these lengths: of one sample, along the axis of samples."""
    axes = zip(edge.axes, lengths, strict=True)
    return edge._replace(axes=tuple(axis._replace(size=n) for axis, n in axes))


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
        """What of a batch the stages of this rank need."""
        return Fields(0 in self.stages, len(self.boundaries) in self.stages, self.positions)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of the stages of this rank, each once."""
        found = dict.fromkeys(p for m in self.stages.values() for p in m.parameters())
        return [p for p in found if self.held(p.place.path)]


class PartTable:
    """What the ranks of `comm` have of these tensors. Every rank makes it, from its own ranges."""

    def __init__(self, comm: Comm, tensors: Placed, own: Iterable[Range]) -> None:
        self.comm, self.tensors = comm, [*tensors]
        self._model: Module | None = None
        self._index = {id(tensor): i for i, (_, tensor) in reversed([*enumerate(tensors)])}
        found = defaultdict[str, list[tuple[int, Range]]](list)
        for rank, ranges in enumerate(gather_objects(comm, list(own))):
            for one in ranges:
                found[one.tensor].append((rank, one))
        self._found = [found[place.path] for place, _ in tensors]
        self._sources: list[list[tuple[int, Range]]] = []

    @classmethod
    def of_model(
        cls, model: Module, comm: Comm, held: Callable[[str], bool] = everything
    ) -> "PartTable":
        """What ranks have of the parameters and buffers of a model, and can read alone.

        `held` tells by its path in the state dict whether this rank has a part of a tensor: a
        pipeline stage has the tensors of its own layers only, and no number of others is read.
        """
        tensors = list(model.tensors())
        own = [
            place.range(lo, hi)
            for i, is_held in enumerate(which_held(tensors, held))
            for place, tensor in tensors[i : i + is_held]
            for lo, hi in _readable(place, tensor)
        ]
        table = cls(comm, tensors, own)
        table._model = model
        return table

    def refresh(self) -> None:
        """Finds the tensors of the model again: a module may have assigned another array."""
        if self._model is not None:
            now = {place.path: (place, tensor) for place, tensor in self._model.tensors()}
            self.tensors[:] = [now.get(row[0].path, row) for row in self.tensors]

    def check(self) -> None:
        """Raises ValueError, on all ranks, unless these have all of the tensors."""
        both = zip(self.tensors, self._found, strict=True)
        self._sources = [_cover(place, found) for (place, _), found in both]

    @property
    def writer_has_all(self) -> bool:
        """Whether the writer has every tensor without a message."""
        return all(rank == WRITER for sources in self._sources for rank, _ in sources)

    @property
    def held(self) -> list[bool]:
        """Whether this rank has a part of each tensor."""
        return [self._part(i) is not None for i in range(len(self.tensors))]

    def has(self, p: Parameter) -> bool:
        """Whether this rank has a part of p."""
        return self._part(self._index[id(p)]) is not None

    def first_copy(self, i: int) -> int:
        """The lowest rank that has the same part of tensor i as this rank, which has one."""
        own = self._part(i)
        return next(rank for rank, one in self._found[i] if one.box == own)

    def counts(self, p: Parameter) -> bool:
        """Whether this rank counts p in a sum over the ranks: the first rank with a copy does."""
        return self.first_copy(self._index[id(p)]) == self.comm.rank

    def on_writer(self, i: int, dtype: np.dtype[Any], read: Read) -> np.ndarray | None:
        """Tensor i on the writer, in C order; None on other ranks. Every rank calls it."""
        comm, sources, (place, tensor) = self.comm, self._sources[i], self.tensors[i]
        if comm.rank != WRITER:
            for rank, one in sources:
                if rank == comm.rank:
                    comm.isend(np.ascontiguousarray(read(one)), WRITER).wait()
            return None
        value = np.empty(place.shape, dtype)
        rows = dict[Part, np.ndarray]()
        for rank, one in sources:
            size = place._replace(part=one.box).size
            row = rows.setdefault(one.box, np.empty(size, dtype))
            if rank == WRITER:
                row[one.lo : one.hi] = read(one)
            else:
                comm.irecv(row[one.lo : one.hi], rank).wait()
        for part, row in rows.items():
            there = place._replace(part=part)
            value[there.slices] = in_shape(row, there.local_shape, memory_axes(tensor))
        return value

    def on_all_ranks(self, i: int, dtype: np.dtype[Any], read: Read) -> np.ndarray:
        """Tensor i on every rank: its own where all ranks have it whole, else the writer's."""
        place, tensor = self.tensors[i]
        entire = place._replace(part=whole(place.shape)).range()
        wholes = {rank: one for rank, one in self._found[i] if one == entire}
        if len(wholes) == self.comm.size:
            row = np.asarray(read(wholes[self.comm.rank]), dtype)
            return np.array(in_shape(row, place.shape, memory_axes(tensor)), order="C")
        value = self.on_writer(i, dtype, read)
        value = np.empty(place.shape, dtype) if value is None else value
        self.comm.broadcast(value, WRITER)
        return value

    def _part(self, i: int) -> Part | None:
        """The part of tensor i that this rank has, if any."""
        own = (one.box for rank, one in self._found[i] if rank == self.comm.rank)
        return next(own, None)


def memory_axes(tensor: Any) -> tuple[int, ...]:
    """The axes of a parameter or a buffer in the order of memory."""
    return tensor.memory_axes if isinstance(tensor, Parameter) else tuple(range(tensor.ndim))


def _readable(place: Place, tensor: Any) -> list[tuple[int, int]]:
    """The stretches of a part that this rank can read alone; at least one, which may be empty."""
    if isinstance(tensor, Parameter) and isinstance(tensor.store, FlatStore):
        return tensor.store.readable(tensor.index)
    return [(0, place.size)]


def _cover(place: Place, found: Sequence[tuple[int, Range]]) -> list[tuple[int, Range]]:
    """Ranges that make up the tensor, each number once, each with the first rank that has it."""
    parts = list(dict.fromkeys(one.box for _, one in found))
    if whole(place.shape) in parts:
        parts = [whole(place.shape)]
    _check_parts(place, parts)
    sources = []
    for part in parts:
        ranges = [(rank, one) for rank, one in found if one.box == part]
        at, size = 0, place._replace(part=part).size
        while at < size:
            row = next((row for row in ranges if row[1].lo <= at < row[1].hi), None)
            if row is None:
                raise ValueError(f"{place.path}: no rank has number {at} of the {size} of {part}")
            rank, one = row
            sources.append((rank, one._replace(lo=at)))
            at = one.hi
    return sources


def _check_parts(place: Place, parts: Sequence[Part]) -> None:
    """Raises ValueError unless the parts make up the tensor, each number once."""
    size = sum(place._replace(part=part).size for part in parts)
    overlap = any(
        all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))
        for one, other in combinations(parts, 2)
    )
    if overlap or size != place._replace(part=whole(place.shape)).size:
        raise ValueError(
            f"{place.path}: the parts {parts} that ranks have do not make up its shape "
            f"{place.shape}, each number once"
        )
