"""Ranks as processes: the communicator of all that a launcher has started."""

import functools
import os

import numpy as np

from nnmpi.comm.call_log import Call, CallLog, call_site
from nnmpi.comm.communicator import Comm
from nnmpi.comm.debug.exit_hooks import ExitHooks
from nnmpi.comm.debug.watchdog import Watchdog
from nnmpi.comm.progress.work import Progress
from nnmpi.comm.settings import DebugSettings
from nnmpi.comm.thread_ranks import comm_self

RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
"""Where launchers say how many ranks they have started."""

LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS")
"""One of these is set for a rank that mpirun, mpiexec or srun has started."""


def world(guard: bool = True) -> Comm:
    """All ranks that mpirun has started; without MPI, a Comm of one rank.

    Made once a process: the first call starts MPI. With `guard`, which has to be the same on all
    ranks, exception hooks and a thread see to it that no rank waits for ever: an exception on one
    ends the job, and so does a rank that leaves while others wait for it, and NNMPI_TIMEOUT. The
    first call decides; without `guard` it leaves the process as it is.
    """
    made = _made()
    if not made:
        made.append(_make(guard))
    return made[0]


@functools.cache
def _made() -> list[Comm]:
    """Where the Comm is kept that `world` has made."""
    return []


def _make(guard: bool) -> Comm:
    settings = DebugSettings.of(os.environ)  # also on one rank: refuses what it cannot use
    try:
        from nnmpi.comm.transport import mpi
    except (ImportError, RuntimeError) as error:  # no mpi4py, or no library behind it
        if launched() > 1:
            raise RuntimeError(
                f"{launched()} ranks were started, but MPI cannot be used here: {error}"
            ) from error
        return comm_self()
    _, size = mpi.rank_and_size()
    if size == 1 < launched():
        raise RuntimeError(
            f"{launched()} ranks were started, but MPI sees only this one: "
            "use the mpirun of the MPI that mpi4py was installed with"
        )
    if size == 1:
        return Comm(mpi.MPITransport.world())
    progress = Progress(CallLog(settings))
    return _guarded(progress) if guard else _joined(progress)


def _joined(progress: Progress) -> Comm:
    """The Comm of several ranks, with the settings of rank 0; waits for all of them."""
    from nnmpi.comm.transport import mpi

    transport = mpi.MPITransport.world()
    agreed = np.array(progress.log.settings if transport.rank == 0 else (0, 0), float)
    transport.all_reduce(agreed)
    progress.log.settings = DebugSettings(bool(agreed[0]), float(agreed[1]))
    return Comm(transport, progress=progress)


def _guarded(progress: Progress) -> Comm:
    """The same, with exception hooks and a watchdog."""
    from nnmpi.comm.transport import mpi

    rank, size = mpi.rank_and_size()
    ExitHooks(rank, size, mpi.abort_job).install()
    watchdog = Watchdog(rank, progress, mpi.abort_job)
    with progress.log.during(Call("world", 0, "world", "", None, 0, -1, *call_site())):
        comm = _joined(progress)
        if comm.any_thread:
            watchdog.connect(mpi.MPIChannel())
    mpi.before_finalize(watchdog.leave)
    return comm


def launched() -> int:
    """How many ranks the launcher has started; 1 where there is none."""
    return next((int(os.environ[name]) for name in RANKS if name in os.environ), 1)


def job() -> Comm:
    """`world()`; without MPI where no launcher has started this process."""
    return world() if has_launcher() else comm_self()


def has_launcher() -> bool:
    """Whether a launcher has started this process, perhaps as the only rank."""
    return any(name in os.environ for name in LAUNCHERS)
