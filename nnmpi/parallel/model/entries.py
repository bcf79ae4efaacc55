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
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place, whole
from nnmpi.parallel.model.parts import Owner, PartTable, everything
from nnmpi.parallel.stores.local import values_of


class Entry(NamedTuple):
    """A whole tensor, on the host and in C order."""

    place: Place
    value: np.ndarray
    in_digest: bool  # a parameter, under the first of its names


class Entries:
    """The entries of `model`, of which each rank of `comm` has some parts. Every rank makes it."""

    def __init__(
        self,
        model: Module,
        comm: Comm,
        held: Callable[[str], bool] = everything,
        writer: int = 0,
    ) -> None:
        self._model, self._comm, self._writer = model, comm, writer
        self.parts = parts = PartTable(model, comm, held)
        self._owners = [parts.owners(i, writer) for i in range(len(parts.places))]
        self._is_whole = [parts.is_whole(i) for i in range(len(parts.places))]

    @property
    def writer_has_all(self) -> bool:
        """Whether the writer yields every entry without a message."""
        return all(owner.rank == self._writer for owners in self._owners for owner in owners)

    def __iter__(self) -> Iterator[Entry]:
        """Every entry in the order of the state dict, on the writer; nothing on other ranks.

        Every rank iterates to the end.
        """
        for i, (place, tensor, in_digest) in enumerate(self._tensors()):
            value = self._gather(i, place, tensor)
            if value is not None:
                yield Entry(place, value, in_digest)

    def on_all_ranks(self) -> Iterator[Entry]:
        """Every entry on every rank: its own where all ranks have the whole tensor, else the
        writer's."""
        for i, (place, tensor, in_digest) in enumerate(self._tensors()):
            if self._is_whole[i]:
                value = _host(tensor)
            else:
                found = self._gather(i, place, tensor)
                value = np.empty(place.shape, self._dtype(i, tensor)) if found is None else found
                self._comm.broadcast(value, self._writer)
            yield Entry(place, value, in_digest)

    def index(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """(path, type, whole shape) of every entry."""
        tensors = enumerate(self._model.tensors())
        return [(place.path, self._dtype(i, t), place.shape) for i, (place, t) in tensors]

    def sha256(self) -> str:
        """One hash of all parameters, whole and in the order of the state dict, on every rank."""
        digest = hashlib.sha256()
        for entry in self:
            if entry.in_digest:
                digest.update(entry.value.tobytes())
        found = np.frombuffer(digest.digest(), np.uint8).copy()
        self._comm.broadcast(found, self._writer)
        return found.tobytes().hex()

    def _tensors(self) -> Iterator[tuple[Place, Any, bool]]:
        seen: set[int] = set()
        for place, tensor in self._model.tensors():
            yield place, tensor, isinstance(tensor, Parameter) and id(tensor) not in seen
            seen.add(id(tensor))

    def _gather(self, i: int, place: Place, tensor: Any) -> np.ndarray | None:
        """The whole tensor on the writer, from one owner of each part."""
        comm, owners, me = self._comm, self._owners[i], self._comm.rank
        if self.parts.held[i] and isinstance(tensor, Parameter):
            tensor = values_of(tensor)  # on all ranks that have it: to read it may be collective
        if owners == [Owner(me, whole(place.shape))] and me == self._writer:
            return _host(tensor)
        if me != self._writer:
            if any(owner.rank == me for owner in owners):
                comm.isend(_host(tensor), self._writer).wait()
            return None
        value = np.empty(place.shape, self._dtype(i, tensor))
        for rank, part in owners:
            there = place._replace(part=part)
            if rank == me:
                value[there.slices] = _host(tensor)
            else:
                received = np.empty(there.local_shape, value.dtype)
                comm.irecv(received, rank).wait()
                value[there.slices] = received
        return value

    def _dtype(self, i: int, tensor: Any) -> np.dtype[Any]:
        """The type of entry i; of a parameter that other ranks hold, that of one that is here.

        All parameters of a model have one type, and each rank holds some of them.
        """
        if isinstance(tensor, Parameter) and not self.parts.held[i]:
            tensor = next(p for p in self._model.parameters() if self.parts.has(p))
        return np.dtype(str(tensor.dtype))


def first_difference(comm: Comm, model: Module, parts: PartTable) -> tuple[str, int] | None:
    """The first tensor whose part here differs from that of the first rank with a copy of it.

    Every rank calls it; all have the same names and shapes.
    """
    tensors = list(model.tensors())
    rows = np.zeros((comm.size, len(tensors)), np.uint64)
    for i, (_, tensor) in enumerate(tensors):
        rows[comm.rank, i] = _digest(_host(tensor)) if parts.held[i] else 0
    comm.all_gather(rows)
    for i, (place, _) in enumerate(tensors):
        first = parts.first_copy(i)
        if rows[first, i] != rows[comm.rank, i]:
            return place.path, first
    return None


def _host(tensor: Any) -> np.ndarray:
    array = values_of(tensor) if isinstance(tensor, Parameter) else tensor
    return np.asarray(backend.to_host(array), order="C")


def _digest(array: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(array.tobytes(), digest_size=8).digest(), "big")
