"""Pieces: whole tensors, one at a time, from the stretches of memory that ranks have of them.

A tensor of a model is in parts along tp, and a part is in several memories along dp. Of a part, in
the order of its memory, a rank has some stretches:

    part 0    rank 0  [ ####.... ]   rank 1  [ ....#### ]     ZeRO, or the memory of a node
    part 1    rank 2  [ ######## ]   rank 3  [ ######## ]     copies: the first rank sends
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi.comm import Comm
from nnmpi.nn.place import Part, Place, whole
from nnmpi.optim import state as states
from nnmpi.parallel.model.parts import check_parts

WRITER = 0  # the rank on which tensors are put together


class Piece(NamedTuple):
    """Elements lo to hi - 1 of a part in the order of its memory."""

    part: Part
    lo: int
    hi: int


class Own(NamedTuple):
    """A piece that this rank has of tensor i, which was updated so often."""

    i: int
    steps: int
    piece: Piece


class Source(NamedTuple):
    """A piece, and the rank that it is taken from."""

    rank: int
    piece: Piece


class PieceTable:
    """The pieces of all ranks of `comm`, of the tensors at `places`. Every rank makes it.

    Raises ValueError, on all ranks, unless the pieces make up all tensors.

    steps   how often each tensor was updated
    """

    def __init__(self, comm: Comm, places: Sequence[Place], own: Sequence[Own]) -> None:
        self._comm, self._places, self.steps = comm, places, [0] * len(places)
        found: dict[int, list[Source]] = defaultdict(list)
        axes = max((len(place.shape) for place in places), default=0)
        for i, rank, steps, lo, hi, *bounds in _gather(comm, own, axes):
            n = len(places[i].shape)
            part = tuple(zip(bounds[: 2 * n : 2], bounds[1 : 2 * n : 2], strict=True))
            found[i].append(Source(rank, Piece(part, lo, hi)))
            self.steps[i] = max(self.steps[i], steps)
        self._sources = [_cover(place, found[i]) for i, place in enumerate(places)]

    def on_writer(
        self,
        i: int,
        dtype: Any,
        layout: Sequence[int],
        own: Callable[[Piece], np.ndarray],
    ) -> np.ndarray | None:
        """Tensor i on the writer, in C order; None on other ranks. Every rank calls it.

        `layout` are its axes in the order of memory; `own` has the numbers of a piece of this rank.
        """
        comm, sources, me = self._comm, self._sources[i], self._comm.rank
        if me != WRITER:
            for rank, piece in sources:
                if rank == me:
                    comm.isend(np.ascontiguousarray(own(piece)), WRITER).wait()
            return None
        value = np.empty(self._places[i].shape, dtype)
        rows = dict[Part, np.ndarray]()
        for rank, piece in sources:
            there = self._places[i]._replace(part=piece.part)
            row = rows.setdefault(piece.part, np.empty(there.size, dtype))
            if rank == me:
                row[piece.lo : piece.hi] = own(piece)
            else:
                comm.irecv(row[piece.lo : piece.hi], rank).wait()
        for part, row in rows.items():
            there = self._places[i]._replace(part=part)
            value[there.slices] = states.shaped(row, there.local_shape, tuple(layout))
        return value

    def on_all_ranks(
        self,
        i: int,
        dtype: Any,
        layout: Sequence[int],
        own: Callable[[Piece], np.ndarray],
    ) -> np.ndarray:
        """Tensor i on every rank."""
        value = self.on_writer(i, dtype, layout, own)
        value = np.empty(self._places[i].shape, dtype) if value is None else value
        self._comm.broadcast(value, WRITER)
        return value


def _gather(comm: Comm, own: Sequence[Own], axes: int) -> list[list[int]]:
    """(tensor, rank, steps, lo, hi, bounds of the part) of all pieces; the writer's come first."""
    rows = np.zeros((len(own), 5 + 2 * axes), np.int64)
    for row, (i, steps, (part, lo, hi)) in zip(rows, own, strict=True):
        row[:5] = i, comm.rank, steps, lo, hi
        row[5 : 5 + 2 * len(part)] = np.ravel(part)
    found: list[list[int]] = gather_rows(comm, rows).tolist()
    return found


def gather_rows(comm: Comm, own: np.ndarray) -> np.ndarray:
    """The rows of all ranks, in the order of ranks; each rank has some of the same width."""
    counts = np.zeros(comm.size, np.int64)
    counts[comm.rank] = len(own)
    comm.all_gather(counts)
    width = own.shape[1]
    rows = np.zeros((counts.sum(), width), own.dtype)
    first = counts[: comm.rank].sum()
    rows[first : first + len(own)] = own
    comm.all_gather(rows, parts=[width * n for n in counts.tolist()])
    return rows


def _cover(place: Place, sources: Sequence[Source]) -> list[Source]:
    """Pieces that make up the tensor, each number once; from the first rank that has it."""
    parts = list(dict.fromkeys(piece.part for _, piece in sources))
    if whole(place.shape) in parts:
        parts = [whole(place.shape)]
    check_parts(place, parts)
    found = []
    for part in parts:
        there = [source for source in sources if source.piece.part == part]
        at, size = 0, place._replace(part=part).size
        while at < size:
            one = next((s for s in there if s.piece.lo <= at < s.piece.hi), None)
            if one is None:
                raise ValueError(
                    f"{place.path}: no rank has number {at} of the {size} of its part {part}; give "
                    "the ranks all that the ranks had that it was taken from"
                )
            found.append(one._replace(piece=one.piece._replace(lo=at)))
            at = one.piece.hi
    return found
