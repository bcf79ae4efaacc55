"""What a worker and a server do alike, in the same order: begin, tell, end."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.mesh import Mesh
from nnmpi.nn.store import length
from nnmpi.parallel.server.exchange import finish
from nnmpi.parallel.server.topology import Seat, SliceStore
from nnmpi.parallel.server.transfer import Carrier, carrier


class Seated:
    """A rank at its seat: its parameters, its peers, and how things are carried between roles."""

    def __init__(self, seat: Seat) -> None:
        self._seat, self._comm = seat, seat.comm
        self.mesh = Mesh.filled(seat.roles.workers, None)
        self._peers = seat.peers()
        self._by, self._store = _settle(seat)
        self._done = 0  # steps of all epochs so far, as workers in step would count them
        self._staleness: dict[str, Any] = {}

    def total(self, sums: np.ndarray) -> None:
        """Sums over all ranks; whoever waits leaves the core to those that evaluate."""
        finish([self._comm.start(sums, "doubling")])

    def describe(self) -> dict[str, Any]:
        """What it tells before the first step."""
        return {**self._seat.describe(), "exchange": self._by.name}

    def outcome(self) -> dict[str, Any]:
        """How stale gradients were."""
        return {"staleness": self._staleness}

    def _leave(self, staleness: Sequence[Mapping[int, int]]) -> None:
        """All end with one model in memory of their own, and with what the first server noted."""
        self._store.close(self._comm)
        for _, buffer in self._seat.task.model.named_buffers():
            self._comm.broadcast(buffer)
        self._by.close()
        self._staleness = _noted(self._seat, staleness)
        self._peers.free()


def _settle(seat: Seat) -> tuple[Carrier, SliceStore]:
    """How things are carried, and the parameters of this rank where that wants them."""
    comm, roles = seat.comm, seat.roles
    trained = [p for p in seat.task.model.parameters() if p.requires_grad]
    n, dtype = length(trained), trained[0].data.dtype
    by, k = carrier(comm, roles, n, dtype), comm.rank - roles.first
    if k < 0:
        return by, SliceStore(trained, slice(0, 0), by.place(comm.rank))
    return by, SliceStore(trained, roles.slice(n, k))


def _noted(seat: Seat, staleness: Sequence[Mapping[int, int]]) -> dict[str, Any]:
    """{worker: {staleness: how often}}, the first server's on every rank."""
    comm, first = seat.comm, seat.roles.first
    own = 1 + max((s for counts in staleness for s in counts), default=0)
    width = np.array([own])
    comm.broadcast(width, first)
    table = np.zeros((seat.roles.workers, max(own, width[0])), np.int64)
    for row, counts in zip(table, staleness, strict=False):
        row[list(counts)] = list(counts.values())
    table = np.ascontiguousarray(table[:, : width[0]])
    comm.broadcast(table, first)
    rows = enumerate(table.tolist())
    return {str(w): {str(s): times for s, times in enumerate(row) if times} for w, row in rows}
