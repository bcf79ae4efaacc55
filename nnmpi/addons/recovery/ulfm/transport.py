"""The transport of MPI ranks that survive the loss of others: `mpirun --with-ft ulfm`, Open MPI 5.

rank 0   Irecv · Isend · Test · Test · Test ── an error ──► Revoke ─► RankLost ─► Shrink
rank 1   Irecv · killed                                        │                     ║
rank 2   Irecv · Isend · Test · Test ── revoked ──► Revoke ◄───┘  ─► RankLost ─► Shrink

Rules, each of which comes from an experiment:

- A rank polls its requests one by one. Waitall ends the job if one of them fails, and Sendrecv may
  crash the process.
- Pending requests and their buffers are kept for ever: the library may still write to the buffers.
- Only ranks that wait for the lost one notice the loss. They revoke the one MPI communicator on
  which all their transports are (a "family", `family.py`), so that ranks which wait for them notice
  too, and so on.
- A probe that finds a message returns it even if its sender is lost, and does not report the loss:
  so a look for losses probes for a tag that no message has.
- Nothing that was revoked is freed.
- If a rank dies while MPI creates a communicator, survivors may be killed. So communicators are
  made only at the start and after a loss; a new transport is a new range of tags on the same one.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nnmpi.addons.recovery.ulfm.family import BARRIER, GATHER, MARKS, UlfmFamily
from nnmpi.addons.recovery.ulfm.files import map_segments, node_number
from nnmpi.comm.transport.base import Bytes, Ledger, Segments, add_up, pieces
from nnmpi.comm.transport.mpi import MPIReceiver, MPITransport, Receive
from nnmpi.comm.transport.node_barrier import Barrier, Counts
from nnmpi.comm.transport.start_mpi import MPI

TIME_TO_NOTICE = 5.0  # seconds; MPI usually notices a lost rank within one


class UlfmTransport(MPITransport):
    """A transport in a fault-tolerant job, which raises RankLost if a rank that it needs is
    lost."""

    fault_tolerant = True
    family: UlfmFamily

    def __init__(
        self, family: UlfmFamily, ranks: Sequence[int], number: int, ledger: Ledger | None = None
    ) -> None:
        super().__init__(family.comm, ledger or Ledger(len(ranks)), family)
        self.rank, self.size = ranks.index(self.rank), len(ranks)
        self.members = [self.members[r] for r in ranks]
        self._ranks, self._first_tag = ranks, family.reserve(number)
        self.marks = MARKS
        first, isend, issend, irecv = self._first_tag, self._isend, self._issend, self._irecv
        self._isend = lambda data, to, tag: isend(data, ranks[to], first + tag)
        self._issend = lambda data, to, tag: issend(data, ranks[to], first + tag)
        self._irecv = lambda data, source, tag: irecv(data, ranks[source], first + tag)

    def isend(self, data: Bytes, to: int, tag: int) -> MPI.Request:
        try:
            return self.family.keep(super().isend(data, to, tag))
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def issend(self, data: Bytes, to: int, tag: int) -> MPI.Request:
        try:
            return self.family.keep(super().issend(data, to, tag))
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def irecv(self, data: Bytes, source: int, tag: int) -> MPI.Request:
        try:
            return self.family.keep(super().irecv(data, source, tag))
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        # Not Sendrecv, which crashed survivors in two of four runs with a lost rank.
        receive = send = MPI.REQUEST_NULL
        try:
            if into is not None:
                receive = super().irecv(into, source, tag)
            if out is not None:
                send = super().isend(out, to, tag)
            while not receive.Test():
                pass
            while not send.Test():
                pass
        except MPI.Exception as error:
            self.family.keep(receive)
            self.family.keep(send)
            self.family.raise_loss(error)

    def wait(self, requests: Sequence[MPI.Request] | Barrier) -> None:
        if isinstance(requests, Barrier):
            requests.wait()
            return
        try:
            # not Waitall: on a revoked communicator it ended the whole job, in 12 of 12 runs
            for request in requests:
                while not request.Test():
                    pass
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def test(self, requests: Sequence[MPI.Request] | Barrier) -> bool:
        if isinstance(requests, Barrier):
            return requests.test()
        try:
            return all(request.Test() for request in requests)
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def receiver(self) -> "UlfmReceiver":
        return UlfmReceiver(self)

    def barrier(self) -> None:
        self.wait([self.ibarrier()])

    def ibarrier(self) -> Any:
        return self._gathering(BARRIER, np.zeros(0), len)

    def all_reduce(self, array: NDArray[Any]) -> None:
        self.wait(self.start_all_reduce(array))

    def start_all_reduce(self, array: NDArray[Any]) -> list[Any]:
        return [self._gathering(GATHER, array, partial(add_up, array))]

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        new = type(self)(self.family, self._ranks, self._agreed_number(), ledger or self.ledger)
        new.message_limit = self.message_limit
        return new

    def split(self, color: int | None, key: int) -> Self | None:
        rows = self.gather([-1 if color is None else color, key]).tolist()
        number = self._agreed_number()
        if color is None:
            return None
        group = sorted((key, r) for r, (other, key) in enumerate(rows) if other == color)
        return type(self)(self.family, [self._ranks[r] for _, r in group], number)

    def split_node(self) -> Self:
        node = self.split(node_number(), self.rank)
        assert node is not None
        return node

    def _agreed_number(self) -> int:
        """Returns the number of a new transport, which determines its tags; collective. The ranks
        propose numbers until all propose the same one."""
        least = 0
        while True:
            proposals = self.gather([self.family.new_number(least)])
            least = int(proposals.max())
            if (proposals == least).all():
                self.family.skip(least)
                return least

    def gather(self, values: Sequence[int]) -> NDArray[np.int64]:
        """Returns the values of all ranks, one row for each."""
        rows = list[NDArray[np.int64]]()
        self.wait([self._gathering(GATHER, np.array(values, np.int64), rows.append)])
        return rows[0]

    def _gathering(self, tag: int, row: NDArray[Any], take: Callable[..., object]) -> Any:
        keep, most = self.family.keep, self.message_limit

        def swap(out: Bytes, to: int, into: Bytes, source: int) -> list[MPI.Request]:
            receives = [keep(self._irecv(piece, source, tag)) for piece in pieces(into, most)]
            return receives + [keep(self._isend(piece, to, tag)) for piece in pieces(out, most)]

        with self.family.noticing():
            return MessageGather(self.rank, self.size, swap, row, take)

    def free(self) -> None:
        if not self.family.abandoned:
            self.family.give_back(self._first_tag)

    def _allocate(self, nbytes: int) -> Segments:
        try:
            return map_segments(self.gather, self.rank == 0, nbytes, self.barrier)
        except FileNotFoundError:  # the first rank has died; MPI notices soon, and RankLost follows
            until = time.monotonic() + TIME_TO_NOTICE
            while time.monotonic() < until:
                self._notice()
            raise

    def _barrier(self, counts: Sequence[Counts], rank: int, sync: Callable[[], Any]) -> Barrier:
        return UlfmBarrier(counts, rank, sync, self._notice)

    def _notice(self) -> None:
        """Makes MPI move pending messages; raises RankLost if a rank is lost."""
        try:
            self._comm.Iprobe(tag=self.family.unused_tag)
        except MPI.Exception as error:
            self.family.raise_loss(error)


class MessageGather:
    """An all-gather made of messages, tested like a request; with empty rows it is a barrier. Each
    rank receives from the next rank, then from the second next, the fourth next, ...

    rank 0   a . . .     a b . .     a b c d
    rank 1   b . . .     b c . .     b c d a
    rank 2   c . . .     c d . .     c d a b
    rank 3   d . . .     d a . .     d a b c

    `swap(out, to, into, source)` starts a send and a receive, and returns their requests; `take` is
    called once with the rows of all ranks, in rank order, when they have arrived. MPI's own
    collectives print lines if a rank is lost, and need a communicator for each transport.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        swap: Callable[..., list[MPI.Request]],
        row: NDArray[Any],
        take: Callable[[NDArray[Any]], object],
    ) -> None:
        self._rank, self._size, self._swap, self._take = rank, size, swap, take
        self._rows = np.zeros((size, *row.shape), row.dtype)  # starting with this rank's
        self._rows[0] = row
        self._hop, self._requests = 0, list[MPI.Request]()
        self.Test()

    def Test(self) -> bool:  # noqa: N802 - the name of MPI's method
        rank, size, rows = self._rank, self._size, self._rows
        while self._hop < size and all(request.Test() for request in self._requests):
            self._hop = hop = 2 * self._hop or 1
            if hop < size:
                parts = rows[:hop][: size - hop], rows[hop : 2 * hop]
                out, into = (part.reshape(-1).view(np.uint8) for part in parts)
                self._requests = self._swap(out, (rank - hop) % size, into, (rank + hop) % size)
            else:
                self._take(np.roll(rows, rank, 0))
        return self._hop >= size


class UlfmBarrier(Barrier):
    """A barrier in shared memory that raises RankLost; the plain one would wait for ever."""

    def test(self) -> bool:
        if super().test():
            return True
        self._progress()
        return False


class UlfmReceiver(MPIReceiver):
    """A receiver that polls, so that it can raise RankLost, and checks the lengths of messages."""

    def __init__(self, transport: UlfmTransport) -> None:
        super().__init__(transport)
        self._noticing = transport.family.noticing

    def wait(self, requests: Sequence[Receive]) -> None:
        while not self.test(requests):
            pass

    def test(self, requests: Sequence[Receive]) -> bool:
        with self._noticing():
            return super().test(requests)
