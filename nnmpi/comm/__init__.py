"""Communicators: ranks, messages between them, and collectives on top."""

import functools
import os

from nnmpi.comm.communicator import Comm as Comm
from nnmpi.comm.debug.call_log import Settings
from nnmpi.comm.debug.compare import MismatchError as MismatchError
from nnmpi.comm.transport import threads
from nnmpi.comm.transport.base import AbortedError as AbortedError
from nnmpi.comm.transport.base import NoRoomError as NoRoomError
from nnmpi.comm.transport.base import OtherRankError as OtherRankError


@functools.cache
def world() -> Comm:
    """All ranks that mpirun has started; without MPI, a Comm of one rank.

    Made once a process: the first call starts MPI.
    """
    Settings.of(os.environ)  # so that what cannot be used is said on any number of ranks
    try:
        from nnmpi.comm.transport import mpi
    except (ImportError, RuntimeError) as error:  # no mpi4py, or no library behind it
        if launched() > 1:
            raise RuntimeError(
                f"{launched()} ranks were started, but MPI cannot be used here: {error}"
            ) from error
        return threads.alone()
    comm = mpi.world()
    if comm.size == 1 < launched():
        raise RuntimeError(
            f"{launched()} ranks were started, but MPI sees only this one: "
            "use the mpirun of the MPI that mpi4py was installed with"
        )
    return comm


def launched() -> int:
    """How many ranks the launcher says it has started; 1 if it says nothing."""
    names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
    return next((int(os.environ[name]) for name in names if name in os.environ), 1)


LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS")
"""One of these is set for a rank that mpirun, mpiexec or srun has started."""


def job() -> Comm:
    """All ranks of the job; a process that no launcher has started is one rank, without MPI."""
    return world() if has_launcher() else threads.alone()


def has_launcher() -> bool:
    """Whether this process was started as a rank of a job, be it the only one."""
    return any(name in os.environ for name in LAUNCHERS)
