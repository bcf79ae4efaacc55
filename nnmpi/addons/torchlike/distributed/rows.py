"""Collectives of a group of ranks on rows: contiguous arrays with one axis.

This module adds what PyTorch's functions need beside the collectives of a Comm: other reductions
than sums, parts in separate arrays, and scatter, gather and all-to-all, which are made of messages.
`nnmpi.distributed` calls these methods with tensors of nnmpi, `nnmpi.torch` with those of PyTorch.

    SUM, AVG              the all-reduce or reduce-scatter of the Comm
    MAX, MIN, PRODUCT ... every rank gets the rows of all ranks, and reduces them in rank order
"""

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from nnmpi.arrays.backend import Array, address_of, xp_of
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.comm import Comm
from nnmpi.comm.allreduce.dispatch import for_size
from nnmpi.parallel.wire import Transfer, wire_for


class ReduceOp(Enum):
    """The operations that combine the values of ranks, with the name of a NumPy function of two
    arrays; AVG is the sum divided by the number of ranks."""

    SUM = "add"
    AVG = "mean"
    PRODUCT = "multiply"
    MIN = "minimum"
    MAX = "maximum"
    BAND = "bitwise_and"
    BOR = "bitwise_or"
    BXOR = "bitwise_xor"


Then: TypeAlias = Callable[[], object]
"""A function to call when the messages of an operation have arrived."""


class Handle:
    """An operation in progress, such as an all-reduce: `wait()` completes it, and `is_completed()`
    moves it forward; several threads may call these two."""

    def __init__(self, works: Sequence["Transfer | Handle"] = ()) -> None:
        self._works, self._then, self._lock = list(works), list[Then](), threading.RLock()

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the operation and returns True; NNMPI_TIMEOUT limits waits, not `timeout`."""
        with self._lock:
            while self._works:
                self._works[0].wait()
                del self._works[0]  # not before: an error has to be raised again by another wait
            while self._then:
                self._then[0]()
                del self._then[0]
        return True

    def is_completed(self) -> bool:
        """Returns True if the operation is complete; does not block."""
        if not self._lock.acquire(blocking=False):  # another thread waits for it
            return False
        try:
            return all(work.poll() for work in self._works) and self.wait()
        finally:
            self._lock.release()

    poll = is_completed
    """`is_completed` under its name in Transfer, so that a handle may be a part of another one."""

    def followed_by(self, then: Then) -> "Handle":
        """Adds a function that is called when the messages have arrived; returns the handle."""
        self._then.append(then)
        return self


class Rows:
    """The collectives of the ranks of a Comm on rows (contiguous 1-D arrays). Each method starts an
    operation and returns its Handle.

    All ranks call the methods in the same order. Ranks in arguments are numbers in the Comm.

    algorithm   the name of the all-reduce algorithm that sums rows, such as "ring", or "auto"
    may_wait    for "auto". True: sums go through the memory of nodes, for whose first use all ranks
                wait. False: by messages. If ranks call the collectives of several groups in
                different orders, only one group may wait, or ranks could do so for ever
    """

    def __init__(self, comm: Comm, algorithm: str = "auto", may_wait: bool = True) -> None:
        self.comm, self.algorithm, self.may_wait = comm, algorithm, may_wait

    def sum_of(self, nbytes: int) -> str:
        """Returns the all-reduce's algorithm, such as "ring", for `nbytes` bytes."""
        if self.may_wait or self.algorithm != "auto":
            return self.algorithm
        return for_size(nbytes)

    @property
    def half(self) -> str:
        """The algorithm of half an all-reduce: `algorithm` if it can, else the ring."""
        return self.algorithm if self.algorithm in REDUCE_SCATTERS else "ring"

    def all_reduce(self, row: Array, op: ReduceOp = ReduceOp.SUM) -> Handle:
        """Starts to replace the row on every rank by its reduction; returns a handle."""
        return self._all_reduce(row, op, "" if op is ReduceOp.SUM else op.name)

    def _all_reduce(self, row: Array, op: ReduceOp, purpose: str) -> Handle:
        check_mean(op, row)
        self.comm.describe_next(purpose)
        if op in (ReduceOp.SUM, ReduceOp.AVG):
            work = wire_for(self.comm, row).start(row, self.sum_of(row.nbytes))
            return self._averaged(Handle([work]), row, op)
        rows = xp_of(row).empty((self.comm.size, row.size), row.dtype)
        handle = self.all_gather(rows.reshape(-1), row)
        return handle.followed_by(lambda: _reduce(rows, op, row))

    def reduce(self, row: Array, root: int, op: ReduceOp = ReduceOp.SUM) -> Handle:
        """Starts to replace the row on `root` by its reduction; returns a handle."""
        row = row if self.comm.rank == root else row.copy()
        return self._all_reduce(row, op, f"{op.name} to rank {root}")

    def all_gather(self, gathered: Array, row: Array) -> Handle:
        """Starts to fill `gathered` with all rows in rank order; returns a handle."""
        n = row.size
        part = gathered[self.comm.rank * n : (self.comm.rank + 1) * n]
        if not _is_same(part, row):
            part[...] = row
        return Handle([wire_for(self.comm, gathered).start_all_gather(gathered, self.half)])

    def reduce_scatter(self, part: Array, row: Array, op: ReduceOp = ReduceOp.SUM) -> Handle:
        """Starts to reduce the row over the ranks; `part` becomes this rank's part of the result,
        and intermediate results overwrite the row. Returns a handle."""
        n, mine = part.size, slice(self.comm.rank * part.size, (self.comm.rank + 1) * part.size)
        check_mean(op, row)
        if op in (ReduceOp.SUM, ReduceOp.AVG):
            self.comm.describe_next("" if op is ReduceOp.SUM else op.name)
            work = wire_for(self.comm, row).start_reduce_scatter(row, self.half)
            handle = Handle([work]).followed_by(lambda: _copy(part, row[mine]))
            return self._averaged(handle, part, op)
        rows = xp_of(row).empty((self.comm.size, n), row.dtype)
        parts = [*row.reshape(self.comm.size, n)]
        tag = self.comm.message_tag(f"reduce_scatter, {op.name}", row)
        handle = self._all_to_all([*rows], parts, tag)
        return handle.followed_by(lambda: _reduce(rows, op, part))

    def broadcast(self, row: Array, root: int) -> Handle:
        """Starts to replace the row on every rank by that of `root`; returns a handle."""
        return Handle([wire_for(self.comm, row).start_broadcast(row, root)])

    def scatter(self, row: Array, rows: Sequence[Array], root: int) -> Handle:
        """Starts to copy row i of `rows` on `root` to rank i; returns a handle."""
        tag = self.comm.message_tag("scatter", row, root)
        if self.comm.rank != root:
            return self.recv(row, root, tag)
        _copy(row, rows[root])
        others = [(r, to) for to, r in enumerate(rows) if to != root]
        return Handle([wire_for(self.comm, r).isend(r, to, tag) for r, to in others])

    def gather(self, rows: Sequence[Array], row: Array, root: int) -> Handle:
        """Starts to copy rank i's row to row i of `rows` on `root`; returns a handle."""
        tag = self.comm.message_tag("gather", row, root)
        if self.comm.rank != root:
            return self.send(row, root, tag)
        _copy(rows[root], row)
        others = [(r, source) for source, r in enumerate(rows) if source != root]
        return Handle([wire_for(self.comm, r).irecv(r, source, tag) for r, source in others])

    def all_to_all(self, received: Sequence[Array], sent: Sequence[Array]) -> Handle:
        """Starts to exchange row i with rank i, for all ranks; returns a handle."""
        tag = self.comm.message_tag("all_to_all", sent[0][:0])  # parts have lengths of their own
        return self._all_to_all(received, sent, tag)

    def _all_to_all(self, received: Sequence[Array], sent: Sequence[Array], tag: int) -> Handle:
        rank, size = self.comm.rank, self.comm.size
        _copy(received[rank], sent[rank])
        works: list[Transfer] = []
        for distance in range(1, size):  # each round, every rank has another one to send to
            to, source = (rank + distance) % size, (rank - distance) % size
            wire = wire_for(self.comm, sent[to])
            works.append(wire.irecv(received[source], source, tag))
            works.append(wire.isend(sent[to], to, tag))
        return Handle(works)

    def barrier(self) -> Handle:
        """Returns a handle that is complete when all ranks have called this method."""
        self.comm.describe_next("barrier")
        return Handle([self.comm.start(np.zeros(1, np.float32), "doubling")])

    def send(self, row: Array, to: int, tag: int = 0) -> Handle:
        """Starts to send the row to rank `to`; returns a handle."""
        return Handle([wire_for(self.comm, row).isend(row, to, tag)])

    def recv(self, row: Array, source: int, tag: int = 0) -> Handle:
        """Starts to receive from rank `source` into the row; returns a handle."""
        return Handle([wire_for(self.comm, row).irecv(row, source, tag)])

    def _averaged(self, handle: Handle, row: Array, op: ReduceOp) -> Handle:
        if op is ReduceOp.SUM:
            return handle
        return handle.followed_by(lambda: _divide(row, self.comm.size))


def check_mean(op: ReduceOp, row: Array) -> None:
    """Raises TypeError for AVG of integers, before anything is sent."""
    if op is ReduceOp.AVG and row.dtype.kind in "iub":
        raise TypeError(f"ReduceOp.AVG of {row.dtype}: sum them, or convert to float32 first")


def _divide(row: Array, count: int) -> None:
    row /= row.dtype.type(count)


def _reduce(rows: Array, op: ReduceOp, out: Array) -> None:
    combine = getattr(xp_of(rows), op.value)
    out[...] = rows[0]
    for row in rows[1:]:
        combine(out, row, out=out)


def _copy(target: Array, source: Array) -> None:
    if not _is_same(target, source):
        target[...] = source


def _is_same(a: Array, b: Array) -> bool:
    """True if two rows of one type and length are the same memory."""
    return address_of(a) == address_of(b)
