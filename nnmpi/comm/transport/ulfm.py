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

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Self

from numpy.typing import NDArray

from nnmpi.comm.transport.base import TAGS, Bytes, Ledger, TransportFamily
from nnmpi.comm.transport.files import HAS_FILES, map_files
from nnmpi.comm.transport.gate import Counts, Gate
from nnmpi.comm.transport.mpi import MPIReceiver, MPITransport, Receive
from nnmpi.comm.transport.mpi_window import Segments
from nnmpi.comm.transport.start_mpi import MPI, OUTLIVES_RANKS
from nnmpi.comm.transport.ulfm_channel import failed_ranks

TIME_TO_NOTICE = 5.0  # seconds, of which it takes less than one
FEWEST = 1000  # requests that are kept before those that are complete are dropped
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


TIME_TO_NOTICE = 5.0  # seconds, of which it takes less than one


class UlfmFamily(TransportFamily):
    """The transports of one rank up to a loss, over communicators made from that of the start."""

    def __init__(
        self, left: MPI.Intracomm, started: MPI.Intracomm, lost: frozenset[int] = frozenset()
    ) -> None:
        super().__init__()
        self.started = started  # all shrink it, again and again, so that they name the same one
        self._left = left  # as many as were left when this family began
        self._met = False
        self._lost = lost  # before this family
        self._posted: list[MPI.Request] = []
        self._most = FEWEST

    def keep(self, request: MPI.Request) -> MPI.Request:
        """Keeps a request, with its buffer, until it is complete, and for ever if it never is."""
        self._posted.append(request)
        if len(self._posted) > self._most:
            self._posted = [*filter(None, self._posted)]  # one that is complete is null
            self._most = max(FEWEST, 2 * len(self._posted))
        return request

    def meet(self, confirms: bool) -> bool:
        """Whether all ranks confirm, and none is lost; the same on all.

        Who shrinks comes too: else those who confirm would wait for it. Once it is False it stays.
        """
        if not self._met:
            try:
                self._met = not self._left.Agree(int(confirms))
            except MPI.Exception:  # of all, where a rank is lost
                self._met = True
        return not self._met

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Around calls of MPI that fail where a rank is lost."""
        try:
            yield
        except MPI.Exception as error:
            self.raise_loss(error)

    def raise_loss(self, error: MPI.Exception) -> NoReturn:
        """Raises RankLost where a rank is gone, else the error."""
        gone = sorted({*failed_ranks(self.started)} - self._lost)
        if not gone and error.Get_error_class() not in LOSSES:
            raise error
        who = f"rank {', '.join(map(str, gone))}" if gone else "a rank"
        raise self.lost(f"lost {who}") from error


class UlfmTransport(MPITransport):
    """The ranks of an MPI communicator, of which some may be lost: RankLost is raised then."""

    fault_tolerant = True
    family: UlfmFamily

    def __init__(
        self,
        comm: MPI.Intracomm,
        ledger: Ledger | None = None,
        family: TransportFamily | None = None,
    ) -> None:
        super().__init__(comm, ledger, family or UlfmFamily(comm, comm))

    def isend(self, data: Bytes, to: int, tag: int) -> MPI.Request:
        try:
            return self.family.keep(super().isend(data, to, tag))
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

    def wait(self, requests: Sequence[MPI.Request] | Gate) -> None:
        if isinstance(requests, Gate):
            requests.wait()
            return
        try:
            for request in requests:
                while not request.Test():
                    pass
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def test(self, requests: Sequence[MPI.Request] | Gate) -> bool:
        if isinstance(requests, Gate):
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
        try:
            return UlfmBarrier(self._comm, self.family)
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def all_reduce(self, array: NDArray[Any]) -> None:
        with self.family.noticing():
            super().all_reduce(array)

    def start_all_reduce(self, array: NDArray[Any]) -> list[MPI.Request]:
        with self.family.noticing():
            return [*map(self.family.keep, super().start_all_reduce(array))]

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
        with self.family.noticing():
            super().free()

    def _allocate(self, nbytes: int) -> Segments:
        try:
            return (
                map_files(self._comm, nbytes, self.barrier)
                if HAS_FILES
                else super()._allocate(nbytes)
            )
        except MPI.Exception as error:
            self.family.raise_loss(error)
        except FileNotFoundError:  # a rank that dies has closed its file, which MPI finds out soon
            until = time.monotonic() + TIME_TO_NOTICE
            while time.monotonic() < until:
                self._notice()
            raise

    def _gate(self, counts: Sequence[Counts], rank: int, sync: Callable[[], Any]) -> Gate:
        return UlfmGate(counts, rank, sync, self._notice)

    def _notice(self) -> None:
        """Moves messages, and raises RankLost where there is a loss."""
        try:
            self._comm.Iprobe()
        except MPI.Exception as error:
            self.family.raise_loss(error)

    def revoke(self) -> None:
        self._comm.Revoke()

    def confirm(self) -> None:
        if not self.family.meet(confirms=True):
            raise self.family.lost("lost a rank")

    def shrink(self) -> Self:
        self.family.abandon()
        self.family.meet(confirms=False)
        started = self.family.started
        with self.family.noticing():
            left = MPI.Intracomm(started.Shrink())
        there = left.Get_group().Translate_ranks(range(left.Get_size()), started.Get_group())
        lost = frozenset(range(started.Get_size())) - {*there}
        return type(self)(left, family=UlfmFamily(left, started, lost))


class UlfmGate(Gate):
    """A gate at which each look notices a loss: who spins on counts would wait for ever."""

    def test(self) -> bool:
        if super().test():
            return True
        self._progress()
        return False


class UlfmBarrier:
    """A barrier of messages, tested as a request is: rank r tells r + 1, then r + 2, r + 4, ...

    That of the library prints lines where a rank is lost.
    """

    def __init__(self, comm: MPI.Intracomm, family: UlfmFamily) -> None:
        self._comm, self._family = comm, family
        self._hop, self._requests = 0, list[MPI.Request]()
        self.Test()

    def Test(self) -> bool:  # noqa: N802 - as MPI calls it
        comm, keep = self._comm, self._family.keep
        rank, size = comm.rank, comm.size
        while all(request.Test() for request in self._requests):
            self._hop = hop = 2 * self._hop or 1
            if hop >= size:
                self._requests = []
                return True
            receive = keep(comm.Irecv(bytearray(), (rank - hop) % size, TAGS))
            self._requests = [receive, keep(comm.Isend(b"", (rank + hop) % size, TAGS))]
        return False


class UlfmReceiver(MPIReceiver):
    """Receives that are polled, and raise RankLost."""

    def __init__(self, transport: UlfmTransport) -> None:
        super().__init__(transport)
        self._noticing = transport.family.noticing

    def wait(self, requests: Sequence[Receive]) -> None:
        while not self.test(requests):
            pass

    def test(self, requests: Sequence[Receive]) -> bool:
        with self._noticing():
            return super().test(requests)
