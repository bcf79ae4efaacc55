"""How gradients reach servers and parameters workers: sent, or in memory that both see."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from nnmpi.backend import Array
from nnmpi.comm import Comm, NoRoomError
from nnmpi.comm.allreduce.node_memory import PAGE
from nnmpi.comm.progress.work import Work
from nnmpi.parallel.server.topology import Roles

GRADIENT, PARAMETERS = 2, 3  # tags; questions and answers have others


class Carrier(Protocol):
    """Brings gradients to servers and parameters to workers."""

    name: str

    def place(self, w: int) -> tuple[Array, Array] | None:
        """Where worker w has its parameters and its gradients, if that matters."""

    def push(self, grad: Array, k: int) -> Sequence[Work]:
        """On a worker: its gradient goes to server k."""

    def pull(self, flat: Array, k: int) -> Sequence[Work]:
        """On a worker: the parameters of server k come."""

    def take(self, w: int) -> Sequence[Work]:
        """On a server: the gradient of worker w comes."""

    def gradient(self, w: int) -> Array:
        """On a server: that gradient; only the server's slice of it means anything."""

    def give(self, flat: Array, w: int) -> Sequence[Work]:
        """On a server: its slice of the parameters goes to worker w."""

    def sync(self) -> None:
        """Around messages: what was written before one is seen behind it."""

    def close(self) -> None:
        """Gives back what was shared; every rank calls it."""


class ByMessage:
    """Slices are sent."""

    name = "messages"

    def __init__(self, comm: Comm, roles: Roles, n: int, dtype: Any) -> None:
        self._comm, self._roles, self._n = comm, roles, n
        k = comm.rank - roles.first
        self._own = roles.slice(n, max(k, 0))
        serving = roles.workers * (k >= 0)
        size = self._own.stop - self._own.start
        # zeros that nobody writes take no memory, and so a slice lies where the whole would
        self._in = [np.zeros(n, dtype) for _ in range(serving)]
        self._out = [np.zeros(size, dtype) for _ in range(serving)]

    def place(self, w: int) -> None:
        return None

    def push(self, grad: Array, k: int) -> Sequence[Work]:
        return [self._comm.isend(grad[self._slice(k)], self._roles.first + k, GRADIENT)]

    def pull(self, flat: Array, k: int) -> Sequence[Work]:
        return [self._comm.irecv(flat[self._slice(k)], self._roles.first + k, PARAMETERS)]

    def take(self, w: int) -> Sequence[Work]:
        return [self._comm.irecv(self._in[w][self._own], w, GRADIENT)]

    def gradient(self, w: int) -> Array:
        return self._in[w]

    def give(self, flat: Array, w: int) -> Sequence[Work]:
        """From a copy: the next step may move the parameters before they have arrived."""
        self._out[w][...] = flat[self._own]
        return [self._comm.isend(self._out[w], w, PARAMETERS)]

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _slice(self, k: int) -> slice:
        return self._roles.slice(self._n, k)


class ThroughMemory:
    """Each worker's parameters and gradients lie where the servers of its node see them."""

    name = "memory"

    def __init__(self, comm: Comm, roles: Roles, n: int, dtype: Any) -> None:
        page = PAGE // np.dtype(dtype).itemsize  # no two workers write to one
        room = -(-n // page) * page
        self._common = comm.common(2 * roles.workers * room, dtype)
        self._rows = self._common.array.reshape(2 * roles.workers, room)[:, :n]
        self._own = roles.slice(n, max(comm.rank - roles.first, 0))

    def place(self, w: int) -> tuple[Array, Array]:
        return self._rows[2 * w], self._rows[2 * w + 1]

    def push(self, grad: Array, k: int) -> Sequence[Work]:
        return ()

    def pull(self, flat: Array, k: int) -> Sequence[Work]:
        return ()

    def take(self, w: int) -> Sequence[Work]:
        return ()

    def gradient(self, w: int) -> Array:
        row: Array = self._rows[2 * w + 1]
        return row

    def give(self, flat: Array, w: int) -> Sequence[Work]:
        self._rows[2 * w][self._own] = flat[self._own]
        return ()

    def sync(self) -> None:
        self._common.sync()

    def close(self) -> None:
        self._common.meet()
        self._common.free()


def carrier(comm: Comm, roles: Roles, n: int, dtype: Any) -> Carrier:
    """Through memory where all ranks are on one node that has room for it; every rank calls it."""
    if len(comm.node()) < comm.size:
        return ByMessage(comm, roles, n, dtype)
    try:
        return ThroughMemory(comm, roles, n, dtype)
    except NoRoomError:
        return ByMessage(comm, roles, n, dtype)
