"""PartTable: which rank has which part of each tensor of a model, from the places of all ranks."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Part, Place, whole


class Owner(NamedTuple):
    """A rank that has a part of a tensor."""

    rank: int
    part: Part


def everything(path: str) -> bool:
    """Of a rank that has a part of every tensor."""
    return True


def which_held(tensors: Sequence[tuple[Place, object]], held: Callable[[str], bool]) -> list[bool]:
    """Of each of `Module.tensors()`, whether this rank has a part of it.

    A tensor under several names is held if one of them is.
    """
    ids = {id(tensor) for place, tensor in tensors if held(place.path)}
    return [id(tensor) in ids for _, tensor in tensors]


class PartTable:
    """The parts of the ranks of `comm`. Every rank makes it.

    `held` tells by its path in the state dict whether this rank has a part of a tensor: a pipeline
    stage has the tensors of its own layers only, and the numbers of others are never read.
    """

    def __init__(self, model: Module, comm: Comm, held: Callable[[str], bool] = everything) -> None:
        tensors = list(model.tensors())
        self._comm, self.places = comm, [place for place, _ in tensors]
        self._index = {id(tensor): i for i, (_, tensor) in reversed([*enumerate(tensors)])}
        self.held = which_held(tensors, held)
        self._table = self._gather()

    def owners(self, i: int, first: int = 0) -> list[Owner]:
        """One owner of each part of tensor i; rank `first` before lower ranks, if it has the part.

        Raises ValueError unless the parts make up the tensor, each number once.
        """
        place = self.places[i]
        found: dict[Part, Owner] = {}
        for rank in (first, *range(self._comm.size)):
            part = self._part(rank, i)
            if part is not None:
                found.setdefault(part, Owner(rank, part))
        if whole(place.shape) in found:
            return [found[whole(place.shape)]]
        check_parts(place, [*found])
        return list(found.values())

    def copies(self, p: Parameter) -> dict[Part, set[int]]:
        """The ranks that have each part of p; parts are those of `owners`."""
        i = self._index[id(p)]
        ranks = range(self._comm.size)
        return {
            owner.part: {rank for rank in ranks if self._part(rank, i) == owner.part}
            for owner in self.owners(i)
        }

    def is_whole(self, i: int) -> bool:
        """Whether every rank has the whole tensor i."""
        shape = self.places[i].shape
        return all(self._part(rank, i) == whole(shape) for rank in range(self._comm.size))

    def first_copy(self, i: int) -> int:
        """The lowest rank that has the same part of tensor i as this rank."""
        own = self._part(self._comm.rank, i)
        return next(rank for rank in range(self._comm.size) if self._part(rank, i) == own)

    def has(self, p: Parameter) -> bool:
        """Whether this rank has a part of p."""
        return self.held[self._index[id(p)]]

    def counts(self, p: Parameter) -> bool:
        """Whether this rank counts p in a sum over the ranks: the first rank with a copy does."""
        return self.first_copy(self._index[id(p)]) == self._comm.rank

    def _gather(self) -> np.ndarray:
        """(ranks, tensors, axes, 2): the part of each tensor that each rank has; -1 where none."""
        axes = max((len(place.shape) for place in self.places), default=0)
        table = np.full((self._comm.size, len(self.places), max(axes, 1), 2), -1)
        for row, place, held in zip(table[self._comm.rank], self.places, self.held, strict=True):
            if held:
                row[...] = 0
                row[: len(place.part)] = np.reshape(place.part, (-1, 2))
        self._comm.all_gather(table)
        return table

    def _part(self, rank: int, i: int) -> Part | None:
        """The part of a rank; None if it has none."""
        row = self._table[rank, i]
        if row[0, 0] < 0:
            return None
        return tuple((start, stop) for start, stop in row[: len(self.places[i].shape)].tolist())


def check_parts(place: Place, parts: Sequence[Part]) -> None:
    """Raises ValueError unless the parts make up the tensor, each number once."""
    size = sum(Place(place.path, place.shape, part).size for part in parts)
    overlap = any(
        all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))
        for one, other in combinations(parts, 2)
    )
    if overlap or size != Place.of_whole(place.path, place.shape).size:
        raise ValueError(
            f"{place.path}: the parts {parts} that ranks have do not make up its shape "
            f"{place.shape}, each number once"
        )
