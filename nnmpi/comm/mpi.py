"""MPI: the only file that names mpi4py."""

from typing import Any, Self

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from nnmpi.comm.base import Bytes, Ledger, Window
from nnmpi.comm.communicator import Comm

PIECE = 1 << 30  # bytes; in the MPI that is installed most, counts are 32-bit numbers


class MPITransport:
    """One rank's way to the others, by the calls of mpi4py that take buffers."""

    def __init__(self, comm: MPI.Intracomm, ledger: Ledger | None = None) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.piece = PIECE
        self.ledger = ledger or Ledger(self.size)
        self._comm = comm
        # looked up once: a small message takes about as long as four calls of Python functions
        self._isend, self._irecv, self._sendrecv = comm.Isend, comm.Irecv, comm.Sendrecv
        self.wait, self.test = MPI.Request.Waitall, MPI.Request.Testall

    def isend(self, data: Bytes, to: int, tag: int) -> MPI.Request:
        ledger = self.ledger
        ledger.sent_messages[to] += 1
        ledger.sent_bytes[to] += data.size
        return self._isend(data, to, tag)

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

    def barrier(self) -> None:
        self._comm.Barrier()

    def ibarrier(self) -> MPI.Request:
        return self._comm.Ibarrier()

    def all_reduce(self, array: NDArray[Any]) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, array, _operation(array))

    def start_all_reduce(self, array: NDArray[Any]) -> MPI.Request:
        return self._comm.Iallreduce(MPI.IN_PLACE, array, _operation(array))

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        return type(self)(MPI.Intracomm(self._comm.Dup()), ledger or self.ledger)

    def split(self, color: int | None, key: int) -> Self | None:
        comm = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if comm == MPI.COMM_NULL else type(self)(MPI.Intracomm(comm))

    def split_node(self) -> Self:
        return type(self)(MPI.Intracomm(self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)))

    def window(self, nbytes: int) -> Window:
        window = MPI.Win.Allocate_shared(nbytes, 1, comm=self._comm)
        memories: list[Any] = [window.Shared_query(r)[0] for r in range(self.size)]
        segments = [np.frombuffer(memory, np.uint8) for memory in memories]
        window.Lock_all()

        def free() -> None:
            window.Unlock_all()
            window.Free()

        return Window(segments, window.Sync, free)

    def abort(self, message: str) -> None:
        del message
        self._comm.Abort(1)


def _operation(array: NDArray[Any]) -> MPI.Op:
    """What NumPy's addition is called in MPI, which does not add truth values."""
    return MPI.LOR if array.dtype.kind == "b" else MPI.SUM


def world() -> Comm:
    """All ranks of the job."""
    return Comm(MPITransport(MPI.Intracomm(MPI.COMM_WORLD.Dup())))
