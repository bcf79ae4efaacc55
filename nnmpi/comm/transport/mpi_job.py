"""The MPI job: its ranks, the messages of their watchdogs, and its end."""

import os
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Self

import mpi4py

from nnmpi.comm.transport import launcher
from nnmpi.comm.transport.start_mpi import MPI, at_exit, finalize


class MPIChannel:
    """A channel for watchdogs' messages, on a new communicator, by ranks of the whole job. A
    watchdog sends from a thread other than the rank's, so MPI must run with THREAD_MULTIPLE."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, job = comm, MPI.COMM_WORLD.Get_group()
        self._ranks = comm.Get_group().Translate_ranks(range(comm.Get_size()), job)
        self.peers = [r for r in self._ranks if r != job.Get_rank()]
        self._sends: list[MPI.Request] = []

    @classmethod
    def of_job(cls) -> Self:
        """Creates the channel of all ranks of the job; collective."""
        return cls(MPI.Intracomm(MPI.COMM_WORLD.Dup()))

    def left(self) -> Sequence[int]:
        """Returns the ranks of the job, without this one and those that are known to be lost."""
        return self.peers

    def send(self, message: bytes, to: int) -> None:
        self._sends.append(self._comm.Isend(message, self._ranks.index(to)))

    def receive(self) -> tuple[int, bytes] | None:
        # a request keeps its buffer alive, so drop it only once the message has left
        self._sends = [request for request in self._sends if not request.Test()]
        status = MPI.Status()
        if not self._comm.Iprobe(status=status):
            return None
        message = bytearray(status.Get_count(MPI.BYTE))
        self._comm.Recv(message, status.Get_source())
        return self._ranks[status.Get_source()], bytes(message)

    def ibarrier(self) -> Callable[[], bool]:
        return self._comm.Ibarrier().Test


def rank_and_size() -> tuple[int, int]:
    """Returns this rank and the number of ranks of the job."""
    return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def abort_job(status: int) -> NoReturn:
    """Ends all ranks with an exit status; exits even if MPI_Abort returns."""
    time.sleep(0.2)  # otherwise the launcher may kill this rank before it has read its output
    if status == 1:
        launcher.terminate(os.getppid())
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


def end_last() -> None:
    """Ends MPI; returns when the other ranks of this node have ended."""
    finalize()
    launcher.wait_for_other_ranks()


def before_finalize(f: Callable[[], None]) -> None:
    """Calls f before MPI ends: at the end of the process, or in the user's MPI.Finalize()."""
    waiting = [f]  # emptied by the first call

    def once(*_: object) -> None:
        while waiting:
            waiting.pop()()

    at_exit(once)
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=once), None)


def versions() -> dict[str, str]:
    """Returns name and version of the MPI library, and mpi4py's version."""
    library = MPI.Get_library_version().rstrip("\0").splitlines()[0].partition(",")[0]
    return {"mpi": " ".join(library.split()), "mpi4py": mpi4py.__version__}
