"""MPI that outlives its ranks (ULFM): `mpirun --with-ft ulfm` of Open MPI 5.

rank 0   Irecv · Isend · Test · Test · Test ── an error ──► Revoke ─► RankLost ─► Shrink
rank 1   Irecv · killed                                        │                     ║
rank 2   Irecv · Isend · Test · Test ── revoked ──► Revoke ◄───┘  ─► RankLost ─► Shrink

Rules, each of which was measured (docs/faults.md):

- A rank polls its requests one by one. Waitall ends the job where one of them fails, and Sendrecv
  may end the process.
- Requests that are not complete, and their buffers, are kept for ever: the library writes to them.
- Only the ranks that wait for the lost one notice it. They revoke all their communicators, so that
  whoever waits for them notices it too, and so on.
- Nothing that was revoked is freed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Self

from numpy.typing import NDArray

from nnmpi.comm.transport.base import Bytes, Ledger, SharedWindow, TransportFamily
from nnmpi.comm.transport.gate import Counts, Gate
from nnmpi.comm.transport.mpi import MPIReceiver, MPITransport, Receive
from nnmpi.comm.transport.mpi_job import MPIChannel
from nnmpi.comm.transport.start_mpi import MPI, OUTLIVES_RANKS

ENDED = b"e"  # what a rank tells the others when it has nothing left to do
LOSSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
"""The classes of errors by which MPI tells that a rank is gone."""


def is_available() -> bool:
    """Whether this job outlives its ranks: started so, by a library that can."""
    if not OUTLIVES_RANKS or MPI.get_vendor()[0] != "Open MPI":
        return False
    try:
        return not MPI.COMM_SELF.Is_revoked()
    except MPI.Exception:  # a library that was built without
        return False


class UlfmFamily(TransportFamily):
    """The transports of one rank up to a loss, over communicators made from that of the start."""

    def __init__(self, started: MPI.Intracomm, lost: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.started = started  # all shrink it, again and again, so that they name the same one
        self._known = lost  # before this family
        self._kept: list[object] = []  # requests that were abandoned

    def raise_loss(self, error: MPI.Exception, *requests: object) -> NoReturn:
        """Raises RankLost where a rank is gone, else the error; the requests are kept for ever."""
        self._kept += requests
        gone = sorted({*failed_ranks(self.started)} - self._known)
        if not gone and error.Get_error_class() not in LOSSES:
            raise error
        who = f"rank {', '.join(map(str, gone))}" if gone else "a rank"
        raise self.lost(f"lost {who}") from error

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Around calls of MPI that fail where a rank is lost."""
        try:
            yield
        except MPI.Exception as error:
            self.raise_loss(error)


def failed_ranks(comm: MPI.Intracomm) -> list[int]:
    """The ranks of a communicator that are known to be gone."""
    failed = comm.Get_failed()
    found = failed.Translate_ranks(range(failed.Get_size()), comm.Get_group())
    failed.Free()
    return sorted(found)


class FailedRequest:
    """A message that could not be posted: it fails where it is waited for, and keeps its buffer.

    So whoever posts several has all of them in hand, to be kept.
    """

    def __init__(self, error: MPI.Exception, data: object) -> None:
        self._error, self._data = error, data

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        raise self._error


class UlfmTransport(MPITransport):
    """The ranks of an MPI communicator, of which some may be lost: RankLost is raised then."""

    fault_tolerant = True

    family: UlfmFamily

    def __init__(self, comm: MPI.Intracomm, ledger: Ledger | None, family: UlfmFamily) -> None:
        super().__init__(comm, ledger, family)
        family.add(self)

    @classmethod
    def world(cls) -> Self:
        started = MPI.Intracomm(MPI.COMM_WORLD.Dup())
        return cls(started, None, UlfmFamily(started))

    def isend(self, data: Bytes, to: int, tag: int) -> Any:
        try:
            return super().isend(data, to, tag)
        except MPI.Exception as error:
            return FailedRequest(error, data)

    def irecv(self, data: Bytes, source: int, tag: int) -> Any:
        try:
            return super().irecv(data, source, tag)
        except MPI.Exception as error:
            return FailedRequest(error, data)

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        receive = None if into is None else self.irecv(into, source, tag)
        send = None if out is None else self.isend(out, to, tag)
        try:
            while receive and not receive.Test():
                pass
            while send and not send.Test():
                pass
        except MPI.Exception as error:
            self.family.raise_loss(error, receive, send)

    def wait(self, requests: Sequence[Any] | Gate) -> None:
        if isinstance(requests, Gate):
            requests.wait()
            return
        try:
            for request in requests:
                while not request.Test():
                    pass
        except MPI.Exception as error:
            self.family.raise_loss(error, *requests)

    def test(self, requests: Sequence[Any] | Gate) -> bool:
        if isinstance(requests, Gate):
            return requests.test()
        try:
            return all(request.Test() for request in requests)
        except MPI.Exception as error:
            self.family.raise_loss(error, *requests)

    def receiver(self) -> "UlfmReceiver":
        return UlfmReceiver(self)

    def barrier(self) -> None:
        self.wait([self.ibarrier()])

    def ibarrier(self) -> Any:
        try:
            return super().ibarrier()
        except MPI.Exception as error:
            return FailedRequest(error, None)

    def all_reduce(self, array: NDArray[Any]) -> None:
        with self.family.noticing():
            super().all_reduce(array)

    def start_all_reduce(self, array: NDArray[Any]) -> list[Any]:
        try:
            return super().start_all_reduce(array)
        except MPI.Exception as error:
            return [FailedRequest(error, array)]

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        with self.family.noticing():
            return super().duplicate(ledger)

    def split(self, color: int | None, key: int) -> Self | None:
        with self.family.noticing():
            return super().split(color, key)

    def split_node(self) -> Self:
        with self.family.noticing():
            return super().split_node()

    def free(self) -> None:
        self.family.remove(self)
        if not self.family.abandoned:
            with self.family.noticing():
                super().free()

    def window(self, nbytes: int) -> SharedWindow:
        made = super().window(nbytes)

        def free() -> None:
            if not self.family.abandoned:
                with self.family.noticing():
                    made.free()

        return made._replace(free=free)

    def _end_without_room(self, nbytes: int, error: Exception) -> NoReturn:
        if isinstance(error, MPI.Exception):
            with self.family.noticing():
                raise error
        super()._end_without_room(nbytes, error)

    def _gate(self, counts: Sequence[Counts], rank: int, sync: Callable[[], Any]) -> Gate:
        return UlfmGate(counts, rank, sync, self._notice)

    def _notice(self) -> None:
        """Moves messages, and raises RankLost where there is a loss."""
        with self.family.noticing():
            self._comm.Iprobe()

    def revoke(self) -> None:
        self._comm.Revoke()

    def shrink(self) -> Self:
        self.family.abandon()
        started = self.family.started
        with self.family.noticing():
            left = MPI.Intracomm(started.Shrink())
        there = left.Get_group().Translate_ranks(range(left.Get_size()), started.Get_group())
        lost = frozenset(range(started.Get_size())) - {*there}
        return type(self)(left, None, UlfmFamily(started, lost))


class UlfmGate(Gate):
    """A gate at which each look notices a loss: who spins on counts would wait for ever."""

    def test(self) -> bool:
        if super().test():
            return True
        self._progress()
        return False


class UlfmReceiver(MPIReceiver):
    """Receives that are polled, and raise RankLost."""

    def __init__(self, transport: UlfmTransport) -> None:
        super().__init__(transport)
        self._family = transport.family

    def wait(self, requests: Sequence[Receive]) -> None:
        while not self.test(requests):
            pass

    def test(self, requests: Sequence[Receive]) -> bool:
        try:
            return super().test(requests)
        except MPI.Exception as error:
            self._family.raise_loss(error, *requests)


class UlfmChannel(MPIChannel):
    """The messages of watchdogs, of which some may be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[int] = set()
        self._ended: set[int] = set()

    def send(self, message: bytes, to: int) -> None:
        if to not in self.gone:
            with suppress(MPI.Exception):  # it is gone, and `receive` finds that out
                super().send(message, to)

    def receive(self) -> tuple[int, bytes] | None:
        try:
            received = super().receive()
        except MPI.Exception:
            self.gone = {*failed_ranks(self._comm)}
            self._comm.Ack_failed(len(self.gone))
            return None
        if received is None or received[1] != ENDED:
            return received
        self._ended.add(received[0])
        return self.receive()

    def ibarrier(self) -> Callable[[], bool]:
        """Complete when all ranks that are left have called it, each of which tells all others."""
        for r in self.peers:
            self.send(ENDED, r)
        return lambda: self._ended | self.gone >= {*self.peers}
