"""The transport of ranks that are MPI processes."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from numpy.typing import NDArray

from nnmpi.comm.stderr import flush_output, print_error
from nnmpi.comm.transport.base import (
    MARKS,
    PENDING,
    TAGS,
    Bytes,
    Ledger,
    MessageLengthError,
    Segments,
    SharedWindow,
    TransportFamily,
    pieces,
)
from nnmpi.comm.transport.mpi_job import abort_job
from nnmpi.comm.transport.node_barrier import Barrier, Counts, length, shared_window
from nnmpi.comm.transport.start_mpi import MPI

MESSAGE_LIMIT = 1 << 30  # bytes; counts are 32-bit integers before MPI 4


class MPITransport:
    """The transport between the ranks of an MPI communicator, by mpi4py's calls for buffers."""

    fault_tolerant = False

    def __init__(
        self,
        comm: MPI.Intracomm,
        ledger: Ledger | None = None,
        family: TransportFamily | None = None,
    ) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.message_limit = MESSAGE_LIMIT
        self.marks = min(((MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0) - TAGS) // PENDING, MARKS)
        self.any_thread = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.ledger = ledger or Ledger(self.size)
        self.family = family or TransportFamily()
        self._comm = comm
        world = MPI.COMM_WORLD.Get_group()
        self.members: Sequence[int] = comm.Get_group().Translate_ranks(range(self.size), world)
        # bound methods, looked up once: a small message takes as long as four Python calls
        self._isend: Callable[..., MPI.Request] = comm.Isend
        self._issend: Callable[..., MPI.Request] = comm.Issend
        self._irecv: Callable[..., MPI.Request] = comm.Irecv
        self._sendrecv = comm.Sendrecv

    @classmethod
    def world(cls) -> Self:
        """Returns the transport of all ranks, on a duplicate of MPI_COMM_WORLD; collective."""
        return cls(MPI.Intracomm(MPI.COMM_WORLD.Dup()))

    def isend(self, data: Bytes, to: int, tag: int) -> MPI.Request:
        ledger = self.ledger
        ledger.sent_messages[to] += 1
        ledger.sent_bytes[to] += data.size
        return self._isend(data, to, tag)

    def issend(self, data: Bytes, to: int, tag: int) -> MPI.Request:
        ledger = self.ledger
        ledger.sent_messages[to] += 1
        ledger.sent_bytes[to] += data.size
        return self._issend(data, to, tag)

    def irecv(self, data: Bytes, source: int, tag: int) -> MPI.Request:
        ledger = self.ledger
        ledger.received_messages[source] += 1
        ledger.received_bytes[source] += data.size
        return self._irecv(data, source, tag)

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        ledger = self.ledger
        if out is None:
            to = MPI.PROC_NULL
        else:
            ledger.sent_messages[to] += 1
            ledger.sent_bytes[to] += out.size
        if into is None:
            source = MPI.PROC_NULL
        else:
            ledger.received_messages[source] += 1
            ledger.received_bytes[source] += into.size
        self._sendrecv(out, to, tag, into, source, tag)

    def wait(self, requests: Sequence[MPI.Request] | Barrier) -> None:
        if isinstance(requests, Barrier):
            requests.wait()
        else:
            MPI.Request.Waitall(requests)

    def test(self, requests: Sequence[MPI.Request] | Barrier) -> bool:
        return requests.test() if isinstance(requests, Barrier) else MPI.Request.Testall(requests)

    def receiver(self) -> "MPIReceiver":
        return MPIReceiver(self)

    def barrier(self) -> None:
        # not MPI_Barrier: a blocking collective does not match the ibarrier of another rank
        self._comm.Ibarrier().Wait()

    def ibarrier(self) -> MPI.Request:
        return self._comm.Ibarrier()

    def all_reduce(self, array: NDArray[Any]) -> None:
        for piece in self._pieces(array):
            self._comm.Allreduce(MPI.IN_PLACE, piece, _sum(array))

    def start_all_reduce(self, array: NDArray[Any]) -> list[MPI.Request]:
        op = _sum(array)
        return [self._comm.Iallreduce(MPI.IN_PLACE, piece, op) for piece in self._pieces(array)]

    def _pieces(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        if array.nbytes <= self.message_limit:
            return [array]
        return pieces(array, self.message_limit // array.itemsize)

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        new = self._of(self._comm.Dup(), ledger or self.ledger)
        new.message_limit = self.message_limit
        return new

    def split(self, color: int | None, key: int) -> Self | None:
        comm = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if comm == MPI.COMM_NULL else self._of(comm)

    def group(self, ranks: Sequence[int]) -> Self:
        return self._of(self._comm.Create_group(self._comm.Get_group().Incl(ranks)))

    def split_node(self) -> Self:
        return self._of(self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank))

    def _of(self, comm: MPI.Comm, ledger: Ledger | None = None) -> Self:
        return type(self)(MPI.Intracomm(comm), ledger, self.family)

    def free(self) -> None:
        if not self.family.abandoned:
            self._comm.Free()

    def free_memory(self) -> int:
        try:
            disk = os.statvfs("/dev/shm")  # Open MPI and MPICH keep shared memory there on Linux
        except (AttributeError, OSError):
            return 1 << 62
        return disk.f_bavail * disk.f_frsize

    def window(self, nbytes: int) -> SharedWindow:
        try:
            memory = self._allocate(length(nbytes))
            return shared_window(memory, self.rank, self.barrier, self._barrier)
        except (MPI.Exception, MemoryError) as error:  # abort: other ranks wait for this one
            self.abort(
                f"cannot get {nbytes:,} bytes of shared memory ({error}): {self.free_memory():,} "
                "are free in /dev/shm, which has filled up since the start; free some, or enlarge "
                "it (docker run --shm-size)"
            )

    def _allocate(self, nbytes: int) -> Segments:
        """Allocates a segment of `nbytes` of shared memory on this rank; collective."""
        # never Win.Create: on Open MPI its operations stall until the target rank enters MPI
        window = MPI.Win.Allocate_shared(nbytes, 1, comm=self._comm)
        window.Lock_all()

        def free() -> None:
            window.Unlock_all()
            window.Free()

        buffers = [window.Shared_query(r)[0] for r in range(self.size)]
        return Segments(buffers, window.Sync, free)

    def _barrier(self, counts: Sequence[Counts], rank: int, sync: Callable[[], Any]) -> Barrier:
        return Barrier(counts, rank, sync, self._comm.Iprobe)

    def abort(self, message: str, status: int = 1) -> NoReturn:
        flush_output()
        print_error(f"rank {MPI.COMM_WORLD.Get_rank()}: {message}")
        abort_job(status)


class Receive:
    """A receive that checks its message's length: MPI accepts a shorter one silently."""

    def __init__(self, request: MPI.Request, nbytes: int, source: int) -> None:
        self._request, self._nbytes, self._source = request, nbytes, source
        self._status, self._done = MPI.Status(), False

    def complete(self, waits: bool) -> bool:
        """Returns True if the message has arrived, after waiting for it if `waits`; raises
        MessageLengthError if it is longer or shorter than the buffer."""
        if self._done:
            return True
        request = self._request
        try:
            self._done = request.Wait(self._status) if waits else request.Test(self._status)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            raise MessageLengthError(self._source, self._nbytes, "more") from None
        got = self._status.Get_count(MPI.BYTE) if self._done else self._nbytes
        if got != self._nbytes:
            raise MessageLengthError(self._source, self._nbytes, f"{got:,}")
        return self._done


class MPIReceiver:
    """Receives and checks the length of each message. The transport itself checks none, since that
    takes time, and all ranks of a collective know the lengths of its messages."""

    def __init__(self, transport: MPITransport) -> None:
        self._irecv = transport.irecv

    def irecv(self, data: Bytes, source: int, tag: int) -> Receive:
        return Receive(self._irecv(data, source, tag), data.size, source)

    def wait(self, requests: Sequence[Receive]) -> None:
        for receive in requests:
            receive.complete(waits=True)

    def test(self, requests: Sequence[Receive]) -> bool:
        return all(receive.complete(waits=False) for receive in requests)


def _sum(array: NDArray[Any]) -> MPI.Op:
    """Returns the MPI operation that adds as NumPy does; for booleans it is MPI.LOR."""
    return MPI.LOR if array.dtype.kind == "b" else MPI.SUM
