"""OptimizerEntries: the whole state of an optimizer, wherever its pieces are, one tensor at a time.

A tensor of a model is in parts along tp, and a part is in several memories along dp; of a part in
the order of its memory, each rank has the running sums of the stretches that it updates:

    part 0    rank 0  [ ####.... ]   rank 1  [ ....#### ]     ZeRO, or the memory of a node
    part 1    rank 2  [ ######## ]   rank 3  [ ######## ]     copies: the first rank sends

The optimizer knows its stretches, so that this works after the end of a run, too.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Part, Place
from nnmpi.optim import Optimizer
from nnmpi.optim import state as states
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.parts import PartTable

WRITER = 0  # the rank that gets the whole


class Piece(NamedTuple):
    """Elements lo to hi - 1 of a part in the order of its memory, on one rank."""

    rank: int
    lo: int
    hi: int


class OptimizerEntries:
    """(name, value) of the whole state; every rank of `comm` makes it, and iterates to the end.

    `parts` are those of the model on the ranks of `comm`.
    """

    def __init__(self, optimizer: Optimizer, model: Module, parts: PartTable, comm: Comm) -> None:
        self._optimizer, self._comm = optimizer, comm
        self._parameters = trained(model)
        states.check_paths([p.place for p in self._parameters])
        self._local = {p: j for j, p in enumerate(optimizer.parameters)}
        self._steps = self._gather_steps()
        pieces = self._gather_pieces()
        self._pieces = [
            _cover(p, parts.copies(p), pieces[i]) for i, p in enumerate(self._parameters)
        ]

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        """On the writer everything, in the order of the model; nothing on other ranks."""
        for place, value in self._values():
            if value is not None and self._comm.rank == WRITER:
                yield place.path, value

    def on_all_ranks(self) -> Iterator[tuple[str, np.ndarray]]:
        """Everything on every rank."""
        for place, value in self._values():
            known = np.empty(place.shape, self._dtype) if value is None else value
            self._comm.broadcast(known, WRITER)
            yield place.path, known

    def _values(self) -> Iterator[tuple[Place, np.ndarray | None]]:
        sums = self._optimizer.sums
        places = iter(states.state_places([p.place for p in self._parameters], sums))
        for i, p in enumerate(self._parameters):
            for k in range(len(sums)):
                yield next(places), self._gather(k, i, p)
            yield next(places), np.array(self._steps[i])

    def _gather(self, k: int, i: int, p: Parameter) -> np.ndarray | None:
        """Running sum k of p, whole on the writer; None elsewhere."""
        comm = self._comm
        mine = [x for pieces in self._pieces[i].values() for x in pieces if x.rank == comm.rank]
        own = self._optimizer.row(k, self._local[p]) if mine else _EMPTY
        if comm.rank != WRITER:
            for _, lo, hi in mine:
                comm.isend(own[lo:hi], WRITER).wait()
            return None
        value = np.empty(p.place.shape, self._dtype)
        for part, pieces in self._pieces[i].items():
            there = p.place._replace(part=part)
            row = np.empty(there.size, self._dtype)
            for rank, lo, hi in pieces:
                if rank == WRITER:
                    row[lo:hi] = own[lo:hi]
                else:
                    comm.irecv(row[lo:hi], rank).wait()
            value[there.slices] = states.shaped(row, there.local_shape, p.layout)
        return value

    @property
    def _dtype(self) -> np.dtype[Any]:
        """The type of all running sums; all parameters of a model have one type."""
        return np.dtype(str(self._optimizer.state[0].dtype))

    def _gather_steps(self) -> list[int]:
        """How often each parameter was updated, by the ranks that update it."""
        table = np.zeros((self._comm.size, len(self._parameters)), np.int64)
        for i, p in enumerate(self._parameters):
            if p in self._local:
                table[self._comm.rank, i] = self._optimizer.steps[self._local[p]]
        self._comm.all_gather(table)
        steps: list[int] = table.max(axis=0).tolist()
        return steps

    def _gather_pieces(self) -> dict[int, list[Piece]]:
        """The pieces of all ranks, by the number of the parameter; the writer's come first."""
        comm = self._comm
        own = [
            (i, comm.rank, min(lo, p.size), min(hi, p.size))
            for i, p in enumerate(self._parameters)
            if p in self._local
            for lo, hi in self._optimizer.stretches[self._local[p]]
        ]
        counts = np.zeros(comm.size, np.int64)
        counts[comm.rank] = len(own)
        comm.all_gather(counts)
        rows = np.zeros((counts.sum(), 4), np.int64)
        first = counts[: comm.rank].sum()
        rows[first : first + len(own)] = np.reshape(own, (-1, 4))
        comm.all_gather(rows, parts=[4 * n for n in counts.tolist()])
        found: dict[int, list[Piece]] = defaultdict(list)
        for i, *piece in sorted(rows.tolist(), key=lambda row: row[1] != WRITER):
            found[i].append(Piece(*piece))
        return found


def load(optimizer: Optimizer, model: Module, state: Mapping[str, Any], comm: Comm) -> None:
    """Copy what this rank has from a whole state, if it fits the whole model on all ranks.

    Every rank calls it, with all of the state.
    """
    places = [p.place for p in trained(model)]
    values = all_or_none(comm, lambda: states.checked(state, places, optimizer.sums))
    optimizer.take(values, [p.place for p in optimizer.parameters])


def trained(model: Module) -> list[Parameter]:
    """The parameters of all ranks that optimizers update."""
    return [p for p in model.parameters() if p.requires_grad]


def _cover(
    p: Parameter, copies: Mapping[Part, set[int]], pieces: list[Piece]
) -> dict[Part, list[Piece]]:
    """Of each part of p, pieces that make it up, each number once; from the first that has it."""
    found: dict[Part, list[Piece]] = {}
    for part, ranks in copies.items():
        size, there = p.place._replace(part=part).size, [x for x in pieces if x.rank in ranks]
        at, found[part] = 0, []
        while at < size:
            rank, _, hi = next(x for x in there if x.lo <= at < x.hi)
            found[part].append(Piece(rank, at, hi))
            at = hi
    return found


_EMPTY = np.empty(0)
