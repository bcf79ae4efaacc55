"""MPI: the only file that names mpi4py."""

import atexit
import ctypes
import errno
import gc
import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

# Read when MPI starts, which is below. Without it Open MPI prints an error for each window, from
# its part for InfiniBand, where there is none.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")

# Over TCP, Open MPI hands messages up to a limit to the kernel at once, which sends them while the
# rank computes. Longer ones need a handshake, for which both ranks have to enter MPI: a rank that
# polls between two layers hid a quarter of the time of its sums with the usual limit of 64 KB, and
# two thirds with this one.
os.environ.setdefault("OMPI_MCA_btl_tcp_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_rndv_eager_limit", str(1 << 20))
os.environ.setdefault("OMPI_MCA_btl_tcp_max_send_size", str(1 << 20))

import mpi4py
from mpi4py import MPI

from nnmpi.comm.stderr import flush_output, print_error
from nnmpi.comm.transport import launcher
from nnmpi.comm.transport.base import (
    Bytes,
    Ledger,
    MessageLengthError,
    SharedWindow,
    TransportFamily,
    pieces,
)
from nnmpi.comm.transport.gate import LINE, Gate

MESSAGE_LIMIT = 1 << 30  # bytes; counts are 32-bit numbers in the MPI that is installed most


class MPITransport:
    """The ranks of an MPI communicator, by the calls of mpi4py that take buffers."""

    fault_tolerant = False

    def __init__(
        self,
        comm: MPI.Intracomm,
        ledger: Ledger | None = None,
        family: TransportFamily | None = None,
    ) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.message_limit = MESSAGE_LIMIT
        self.any_thread = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.ledger = ledger or Ledger(self.size)
        self._comm = comm
        self.family = family or TransportFamily()
        self.family.add(self)
        world = MPI.COMM_WORLD.Get_group()
        self.members: Sequence[int] = comm.Get_group().Translate_ranks(range(self.size), world)
        # looked up once: a small message takes about as long as four calls of Python functions
        self._isend, self._irecv, self._sendrecv = comm.Isend, comm.Irecv, comm.Sendrecv

    @classmethod
    def world(cls) -> Self:
        """All ranks of the job, on a communicator of their own; collective."""
        return cls(MPI.Intracomm(MPI.COMM_WORLD.Dup()))

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

    def wait(self, requests: Sequence[MPI.Request] | Gate) -> None:
        if isinstance(requests, Gate):
            requests.wait()
        else:
            MPI.Request.Waitall(requests)

    def test(self, requests: Sequence[MPI.Request] | Gate) -> bool:
        return requests.test() if isinstance(requests, Gate) else MPI.Request.Testall(requests)

    def receiver(self) -> "MPIReceiver":
        return MPIReceiver(self)

    def barrier(self) -> None:
        # MPI does not let a blocking collective match a non-blocking one, so not MPI_Barrier
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
        new = type(self)(MPI.Intracomm(self._comm.Dup()), ledger or self.ledger, self.family)
        new.message_limit = self.message_limit
        return new

    def split(self, color: int | None, key: int) -> Self | None:
        comm = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        if comm == MPI.COMM_NULL:
            return None
        return type(self)(MPI.Intracomm(comm), family=self.family)

    def split_node(self) -> Self:
        comm = self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        return type(self)(MPI.Intracomm(comm), family=self.family)

    def free(self) -> None:
        if not self.family.abandoned:
            self.family.remove(self)
            self._comm.Free()

    def revoke(self) -> None:
        pass

    def confirm(self) -> None:
        pass

    def shrink(self) -> Self:
        raise RuntimeError("this job ends with its first rank that is lost")

    def free_memory(self) -> int:
        try:
            disk = os.statvfs("/dev/shm")  # where Open MPI and MPICH keep it on Linux
        except (AttributeError, OSError):
            return 1 << 62
        return disk.f_bavail * disk.f_frsize

    def window(self, nbytes: int) -> SharedWindow:
        size = -(-nbytes // LINE) * LINE  # behind which are the counts of the gate
        try:
            window = MPI.Win.Allocate_shared(size + LINE, 1, comm=self._comm)
        except MPI.Exception as error:  # on some ranks only: the others wait for them
            self._abort_without_room(nbytes, f" ({error})")
        memories: list[Any] = [window.Shared_query(r)[0] for r in range(self.size)]
        if not has_room(np.frombuffer(memories[self.rank], np.uint8)):
            self._abort_without_room(nbytes)
        window.Lock_all()
        behind = [len(memory) - LINE for memory in memories]
        counts = [np.frombuffer(m, np.int64, 1, at) for m, at in zip(memories, behind, strict=True)]
        counts[self.rank][:] = 0
        self.barrier()
        segments = [np.frombuffer(m, np.uint8, at) for m, at in zip(memories, behind, strict=True)]
        gate = Gate(counts, self.rank, window.Sync, self._comm.Iprobe)

        def free() -> None:
            window.Unlock_all()
            window.Free()

        def is_viewed() -> bool:
            views = [weakref.ref(segment) for segment in segments]
            segments.clear()
            if any(view() is not None for view in views):
                gc.collect()  # some may only wait for it
            return any(view() is not None for view in views)

        moves = gate.barrier, gate.arrive, gate.exchange
        return SharedWindow(segments, window.Sync, *moves, free, is_viewed)

    def _abort_without_room(self, nbytes: int, reason: str = "") -> NoReturn:
        self.abort(
            f"cannot get {nbytes:,} bytes of shared memory{reason}: {self.free_memory():,} are "
            "free in /dev/shm, which has filled meanwhile; free some, or enlarge it (docker run "
            "--shm-size)"
        )
        raise AssertionError

    def abort(self, message: str, status: int = 1) -> None:
        flush_output()
        print_error(f"rank {MPI.COMM_WORLD.Get_rank()}: {message}")
        abort_job(status)


def has_room(segment: Bytes) -> bool:
    """Whether there is memory behind a segment, which is taken now: to write to it where there is
    none ends the process by SIGBUS. Where the system cannot tell, True.
    """
    if sys.platform != "linux" or not segment.size:
        return True
    populate_write = 23  # of Linux from 5.14 on
    address = segment.__array_interface__["data"][0]
    skew = address % mmap.PAGESIZE
    start, nbytes = ctypes.c_void_p(address - skew), ctypes.c_size_t(segment.size + skew)
    failed = ctypes.CDLL(None, use_errno=True).madvise(start, nbytes, populate_write)
    return not failed or ctypes.get_errno() not in (errno.EFAULT, errno.ENOMEM)


class Receive:
    """A receive that compares the length of the message; MPI fills a part of a buffer silently."""

    def __init__(self, request: MPI.Request, nbytes: int, source: int) -> None:
        self._request, self._nbytes, self._source = request, nbytes, source
        self._status, self._done = MPI.Status(), False

    def complete(self, call: Callable[[MPI.Request, MPI.Status], bool]) -> bool:
        """Waits or tests, by a call of MPI; returns whether the message is here."""
        if self._done:
            return True
        try:
            self._done = call(self._request, self._status)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            raise MessageLengthError(self._source, self._nbytes, "more") from None
        got = self._status.Get_count(MPI.BYTE) if self._done else self._nbytes
        if got != self._nbytes:
            raise MessageLengthError(self._source, self._nbytes, f"{got:,}")
        return self._done


class MPIReceiver:
    """Receives on a transport, each of which looks at the status of its message.

    Transports pass no statuses to MPI: what collectives receive has the length that they agree on.
    """

    def __init__(self, transport: MPITransport) -> None:
        self._irecv = transport.irecv

    def irecv(self, data: Bytes, source: int, tag: int) -> Receive:
        return Receive(self._irecv(data, source, tag), data.size, source)

    def wait(self, requests: Sequence[Receive]) -> None:
        for receive in requests:
            receive.complete(MPI.Request.Wait)

    def test(self, requests: Sequence[Receive]) -> bool:
        return all(receive.complete(MPI.Request.Test) for receive in requests)


def _sum(array: NDArray[Any]) -> MPI.Op:
    """What NumPy's addition is called in MPI, which does not add booleans."""
    return MPI.LOR if array.dtype.kind == "b" else MPI.SUM


class MPIChannel:
    """The messages of watchdogs, on a communicator of their own; collective.

    They are sent from another thread than the rank's own, so MPI has to allow several.
    """

    def __init__(self) -> None:
        self._comm = MPI.Intracomm(MPI.COMM_WORLD.Dup())
        rank, size = rank_and_size()
        self.peers = [r for r in range(size) if r != rank]
        self._sends: list[MPI.Request] = []

    def send(self, message: bytes, to: int) -> None:
        self._sends.append(self._comm.Isend(message, to))

    def receive(self) -> tuple[int, bytes] | None:
        self._sends = [request for request in self._sends if not request.Test()]
        status = MPI.Status()
        if not self._comm.Iprobe(status=status):
            return None
        message = bytearray(status.Get_count(MPI.BYTE))
        self._comm.Recv(message, status.Get_source())
        return status.Get_source(), bytes(message)

    def ibarrier(self) -> Callable[[], bool]:
        return self._comm.Ibarrier().Test


def rank_and_size() -> tuple[int, int]:
    """This rank, and the number of ranks in the job."""
    return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def abort_job(status: int) -> None:
    """Ends all ranks. MPI_Abort may return, and then this rank ends all the same."""
    time.sleep(0.2)  # else the launcher may kill this rank before it has read what was printed
    if status == 1:
        launcher.end()
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


def end_last() -> None:
    """Ends MPI, and returns when the other ranks of this node have ended: see `launcher`."""
    MPI.Finalize()
    launcher.wait_for_other_ranks()


def before_finalize(f: Callable[[], None]) -> None:
    """Calls f before MPI ends: at the end of the process, or in the user's MPI.Finalize()."""
    process = os.getpid()

    def once(*_: object) -> None:
        atexit.unregister(once)
        if os.getpid() == process:  # a fork is no rank
            f()

    atexit.register(once)
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=once), None)


def versions() -> dict[str, str]:
    """The name and version of the MPI library, from its first line, and that of mpi4py."""
    library = MPI.Get_library_version().rstrip("\0").splitlines()[0].partition(",")[0]
    return {"mpi": " ".join(library.split()), "mpi4py": mpi4py.__version__}
