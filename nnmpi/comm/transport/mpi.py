"""MPI: the only file that names mpi4py."""

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

# Read when MPI starts, which is below. Without it Open MPI prints an error for each window, from
# its part for InfiniBand, where there is none.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")

# Over TCP, Open MPI gives messages up to a limit to the system at once, which sends them while the
# rank computes. Of longer ones it sends the rest when both ends have answered each other, and each
# has to look for that: a rank that looks between two layers hid a quarter of the time of its sums
# with the usual limit of 64 KB, and two thirds with this one.
os.environ.setdefault("OMPI_MCA_btl_tcp_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_rndv_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_max_send_size", str(1 << 20))

from mpi4py import MPI

from nnmpi.comm.arrays import pieces
from nnmpi.comm.communicator import Comm
from nnmpi.comm.debug.call_log import Guard, Settings
from nnmpi.comm.debug.exit_hooks import Ends, flush, say
from nnmpi.comm.debug.watchdog import Watch
from nnmpi.comm.progress.work import Progress
from nnmpi.comm.transport.base import Bytes, Ledger, Window

PIECE = 1 << 30  # bytes; in the MPI that is installed most, counts are 32-bit numbers


class MPITransport:
    """One rank's way to the others, by the calls of mpi4py that take buffers."""

    def __init__(self, comm: MPI.Intracomm, ledger: Ledger | None = None) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.piece = PIECE
        self.any_thread = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.ledger = ledger or Ledger(self.size)
        self._comm = comm
        everybody = MPI.COMM_WORLD.Get_group()
        self.members: Sequence[int] = comm.Get_group().Translate_ranks(range(self.size), everybody)
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
        # MPI lets no call that blocks meet one that does not, so this is not MPI_Barrier
        self._comm.Ibarrier().Wait()

    def ibarrier(self) -> MPI.Request:
        return self._comm.Ibarrier()

    def all_reduce(self, array: NDArray[Any]) -> None:
        for part in self._parts(array):
            self._comm.Allreduce(MPI.IN_PLACE, part, _operation(array))

    def start_all_reduce(self, array: NDArray[Any]) -> list[MPI.Request]:
        op = _operation(array)
        return [self._comm.Iallreduce(MPI.IN_PLACE, part, op) for part in self._parts(array)]

    def _parts(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        return pieces(array, self.piece // array.itemsize) if array.nbytes > self.piece else [array]

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        return type(self)(MPI.Intracomm(self._comm.Dup()), ledger or self.ledger)

    def split(self, color: int | None, key: int) -> Self | None:
        comm = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if comm == MPI.COMM_NULL else type(self)(MPI.Intracomm(comm))

    def split_node(self) -> Self:
        return type(self)(MPI.Intracomm(self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)))

    def free(self) -> None:
        self._comm.Free()

    def room(self) -> int:
        try:
            disk = os.statvfs("/dev/shm")  # where Open MPI and MPICH keep it on Linux
        except (AttributeError, OSError):
            return 1 << 62
        return disk.f_bavail * disk.f_frsize

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
        flush()
        say(f"rank {MPI.COMM_WORLD.Get_rank()}: {message}")
        _abort(1)


def _operation(array: NDArray[Any]) -> MPI.Op:
    """What NumPy's addition is called in MPI, which does not add truth values."""
    return MPI.LOR if array.dtype.kind == "b" else MPI.SUM


class Control:
    """What the watches of the ranks say to each other."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self._comm = comm.Get_rank(), comm
        self.peers: Sequence[int] = [r for r in range(comm.Get_size()) if r != self.rank]
        self._sent: list[MPI.Request] = []

    def send(self, message: bytes, to: int) -> None:
        self._sent.append(self._comm.Isend(message, to))

    def poll(self) -> tuple[int, bytes] | None:
        self._sent = [request for request in self._sent if not request.Test()]
        status = MPI.Status()
        if not self._comm.Iprobe(status=status):
            return None
        message = bytearray(status.Get_count(MPI.BYTE))
        self._comm.Recv(message, status.Get_source())
        return status.Get_source(), bytes(message)

    def meet(self) -> Callable[[], bool]:
        return self._comm.Ibarrier().Test

    def abort(self, message: str, status: int = 1) -> None:
        say(message)
        _abort(status)


class Mute(Control):
    """Where only one thread may call MPI: it knows nothing of other ranks."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self.peers = []

    def poll(self) -> None:
        return None

    def meet(self) -> Callable[[], bool]:
        return lambda: True

    def abort(self, message: str, status: int = 1) -> None:
        unknown = "MPI was not started with THREAD_MULTIPLE, so other ranks cannot be asked"
        super().abort(f"{message}\n{unknown}", status)


def world() -> Comm:
    """All ranks of the job, watched: what goes wrong on one of them ends it for all."""
    everybody = MPI.COMM_WORLD
    rank, size = everybody.Get_rank(), everybody.Get_size()
    if size == 1:
        return Comm(MPITransport(MPI.Intracomm(everybody.Dup())))
    ends = Ends(rank, size, _abort)
    ends.install()
    own = Settings.of(os.environ)
    with _arriving(own.timeout):
        agreed = np.array(own, float)  # rank 0's
        everybody.Bcast(agreed)
        progress = Progress(Guard(Settings(bool(agreed[0]), float(agreed[1]))))
        comm = Comm(MPITransport(MPI.Intracomm(everybody.Dup())), progress=progress)
        channel = MPI.Intracomm(everybody.Dup())
    may_talk = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    watch = Watch((Control if may_talk else Mute)(channel), progress)
    _at_the_end(lambda: watch.leave(ends.status()))
    return comm


def _abort(status: int) -> None:
    """Ends all ranks. MPI may return from it, and then this one ends all the same."""
    time.sleep(0.2)  # else the launcher may kill this rank before it has read what it said
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


@contextmanager
def _arriving(timeout: float) -> Iterator[None]:
    """Around the first calls of all ranks, before there is anybody to ask who is missing."""
    rank = MPI.COMM_WORLD.Get_rank()

    def end() -> None:
        say(
            f"rank {rank} has waited for {timeout:g} s (NNMPI_TIMEOUT) until all ranks call world()"
        )
        _abort(1)

    alarm = threading.Timer(timeout, end)
    alarm.daemon = True
    if timeout < threading.TIMEOUT_MAX:
        alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def _at_the_end(f: Callable[[], None]) -> None:
    """Before MPI ends: at the end of the process, or when a user calls MPI.Finalize."""
    process = os.getpid()

    def once(*_: object) -> None:
        atexit.unregister(once)
        if os.getpid() == process:  # a fork has no part in MPI
            f()

    atexit.register(once)
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=once), None)
