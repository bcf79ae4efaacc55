"""Entries: the whole tensors of a model, wherever its parts are, one at a time.

Files, the digest and --verify read a model through them alone. All ranks go through the entries
together; each whole tensor is put together on the rank that writes, from one owner of each part:

    rank 0 (writer)   part of a   ◄── receive ──┐      yields a, then b, ...
    rank 1            part of a   ─── send ─────┘      yields nothing
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Part, Place, whole

MAX_AXES = 8


class Entry(NamedTuple):
    """A whole tensor, on the host and in C order."""

    place: Place
    value: np.ndarray
    counts: bool  # in the digest: a parameter, under the first of its names


class Owner(NamedTuple):
    """A rank that has a part of a tensor."""

    rank: int
    part: Part


def everything(path: str) -> bool:
    """Of a rank that has a part of every tensor."""
    return True


class Entries:
    """The entries of `model`, of which each rank of `comm` has some parts. Every rank makes it.

    `held` tells by the path whether this rank has a part of a tensor, as a pipeline stage has of
    its layers only.
    """

    def __init__(
        self,
        model: Module,
        comm: Comm,
        held: Callable[[str], bool] = everything,
        writer: int = 0,
    ) -> None:
        self._model, self._comm, self._writer = model, comm, writer
        table = _parts(model, comm, held)
        order = (writer, *(r for r in range(comm.size) if r != writer))
        self._owners = [
            _owners(place, [(r, table[r, i]) for r in order])
            for i, (place, _) in enumerate(model.tensors())
        ]
        self._whole = [
            all(_part(place, table[r, i]) == whole(place.shape) for r in range(comm.size))
            for i, (place, _) in enumerate(model.tensors())
        ]

    @property
    def writer_has_all(self) -> bool:
        """Whether the writer yields every entry without a message."""
        return all(owner.rank == self._writer for owners in self._owners for owner in owners)

    def __iter__(self) -> Iterator[Entry]:
        """Every entry in the order of the state dict, on the writer; nothing on other ranks.

        Every rank iterates to the end.
        """
        for i, (place, tensor, counts) in enumerate(self._tensors()):
            value = self._together(i, place, tensor)
            if value is not None:
                yield Entry(place, value, counts)

    def everywhere(self) -> Iterator[Entry]:
        """Every entry on every rank: its own where all ranks have the whole tensor, else the
        writer's."""
        for i, (place, tensor, counts) in enumerate(self._tensors()):
            if self._whole[i]:
                value = _host(tensor)
            else:
                found = self._together(i, place, tensor)
                value = np.empty(place.shape, self._dtype(tensor)) if found is None else found
                self._comm.broadcast(value, self._writer)
            yield Entry(place, value, counts)

    def index(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """(path, type, whole shape) of every entry."""
        return [(place.path, self._dtype(t), place.shape) for place, t in self._model.tensors()]

    def sha256(self) -> str:
        """One hash of all parameters, whole and in the order of the state dict, on every rank."""
        digest = hashlib.sha256()
        for entry in self:
            if entry.counts:
                digest.update(entry.value.tobytes())
        found = np.frombuffer(digest.digest(), np.uint8).copy()
        self._comm.broadcast(found, self._writer)
        return found.tobytes().hex()

    def _tensors(self) -> Iterator[tuple[Place, Any, bool]]:
        seen: set[int] = set()
        for place, tensor in self._model.tensors():
            yield place, tensor, isinstance(tensor, Parameter) and id(tensor) not in seen
            seen.add(id(tensor))

    def _together(self, i: int, place: Place, tensor: Any) -> np.ndarray | None:
        """The whole tensor on the writer, from one owner of each part."""
        comm, owners, me = self._comm, self._owners[i], self._comm.rank
        if owners == [Owner(me, whole(place.shape))] and me == self._writer:
            return _host(tensor)
        if me != self._writer:
            if any(owner.rank == me for owner in owners):
                comm.isend(_host(tensor), self._writer).wait()
            return None
        value = np.empty(place.shape, self._dtype(tensor))
        for rank, part in owners:
            there = place._replace(part=part)
            if rank == me:
                value[there.slices] = _host(tensor)
            else:
                received = np.empty(there.local_shape, value.dtype)
                comm.irecv(received, rank).wait()
                value[there.slices] = received
        return value

    def _dtype(self, tensor: Any) -> np.dtype[Any]:
        """The type of an entry; all parameters of a model have one, drawn on this rank or not."""
        if isinstance(tensor, Parameter) and not tensor.is_drawn:
            tensor = next(p for p in self._model.parameters() if p.is_drawn)
        return np.dtype(str(tensor.dtype))


def first_difference(comm: Comm, model: Module) -> tuple[str, int] | None:
    """The first tensor whose part here differs from a copy on a lower rank, and that rank.

    Every rank calls it; all have the same names and shapes.
    """
    own = [
        (_digest(repr(place.part).encode()), _digest(_host(tensor).tobytes()))
        if _is_held(tensor)
        else (0, 0)
        for place, tensor in model.tensors()
    ]
    rows = np.zeros((comm.size, len(own), 2), np.uint64)
    rows[comm.rank] = own
    comm.all_gather(rows)
    for i, (place, _) in enumerate(model.tensors()):
        part, values = own[i]
        first = int(np.flatnonzero(rows[:, i, 0] == part)[0])
        if rows[first, i, 1] != values:
            return place.path, first
    return None


def _parts(model: Module, comm: Comm, held: Callable[[str], bool]) -> np.ndarray:
    """(ranks, entries, axes, 2): the part of each entry that each rank has; -1 where none."""
    places = [place for place, _ in model.tensors()]
    table = np.full((comm.size, len(places), MAX_AXES, 2), -1)
    for i, place in enumerate(places):
        if held(place.path):
            table[comm.rank, i] = 0
            table[comm.rank, i, : len(place.part)] = np.reshape(place.part, (-1, 2))
    comm.all_gather(table)
    return table


def _part(place: Place, row: np.ndarray) -> Part | None:
    """A row of the table as a part; None if the rank has none."""
    if row[0, 0] < 0:
        return None
    return tuple((start, stop) for start, stop in row[: len(place.shape)].tolist())


def _owners(place: Place, rows: list[tuple[int, np.ndarray]]) -> list[Owner]:
    """One owner of each part, the first of the ranks in this order; one of all, if there is."""
    found: dict[Part, Owner] = {}
    for rank, row in rows:
        part = _part(place, row)
        if part is not None:
            found.setdefault(part, Owner(rank, part))
    everything = whole(place.shape)
    return [found[everything]] if everything in found else list(found.values())


def _is_held(tensor: Any) -> bool:
    """Whether this rank has a part; a parameter of another rank is never drawn."""
    return not isinstance(tensor, Parameter) or tensor.is_drawn


def _host(tensor: Any) -> np.ndarray:
    array = tensor.data if isinstance(tensor, Tensor) else tensor
    return np.asarray(backend.to_host(array), order="C")


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") | 1
