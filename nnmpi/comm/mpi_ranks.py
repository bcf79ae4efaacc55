"""Ranks as processes: the communicator of all ranks that a launcher has started."""

import functools
import math
import os
import signal
import sys
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from nnmpi.addons import Table
from nnmpi.comm import transport as transports
from nnmpi.comm.call_log import CallLog, CallSignature, DebugSettings
from nnmpi.comm.calls import record_of
from nnmpi.comm.communicator import Comm
from nnmpi.comm.debug import exit_hooks
from nnmpi.comm.debug.start_limit import limit_end, limited_start, rank_of
from nnmpi.comm.progress import Progress
from nnmpi.comm.stderr import flush_output
from nnmpi.comm.thread_ranks import comm_self
from nnmpi.comm.transport.base import OtherRankError, Transport

if TYPE_CHECKING:  # an import starts MPI
    from nnmpi.comm.transport.mpi_job import MPIChannel

RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
"""Environment variables in which launchers pass the number of ranks."""

LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS")
"""Environment variables of which mpirun, mpiexec or srun sets at least one for each rank."""


def world(guard: bool = True) -> Comm:
    """The Comm of all ranks that mpirun has started; without MPI, a Comm of one rank.

    The first call starts MPI; later calls return the same Comm. With `guard`, which must be the
    same on all ranks, exception hooks and a watchdog thread keep ranks from waiting for ever. The
    job then ends if a rank raises an exception, if a rank leaves while others wait for it, or if a
    rank waits for longer than NNMPI_TIMEOUT (by default unlimited, except for 5 minutes at the
    start). Without `guard`, neither hooks nor threads are added. The first call decides.

    Hooks that were set before are called first. An `atexit` function finalizes MPI, so functions
    that are registered later run before it. Python runs no thread during MPI_Init and MPI_Finalize:
    a second process watches these two, and kills a rank that waits there for too long. A rank that
    calls `sys.exit(3)` gives the job status 3 if all others reach their end, and status 1, with
    one line, if one of them waits for it. A process that a rank forks is not a rank.
    """
    made = _cached()
    if not made:
        made.append(_make_world(guard))
    return made[0]


@functools.cache
def _cached() -> list[Comm]:
    """Returns always the same list, with `world`'s Comm once that exists."""
    return []


class _UnusableError(RuntimeError):
    """Raised if MPI cannot be used on this rank, or cannot see the other ranks."""


def _make_world(guard: bool) -> Comm:
    if not (guard and has_launcher()):
        return _start(guard)
    # all ranks raise these alike, so no other rank waits for this one
    on_all = _UnusableError, OtherRankError, ValueError
    ending = exit_hooks.JobEnd(_abort)
    with exit_hooks.fatal(f"rank {rank_of(os.environ)} of {launched()}", ending, on_all):
        return _start(guard)


def _abort(status: int) -> None:
    """Ends the job with an exit status; before MPI runs, this process, and the launcher then ends
    the others. It ends by a signal: the launcher of Open MPI 5 may hang for ever if one rank exits
    with a status while another one connects to it."""
    if "mpi4py.MPI" in sys.modules:
        from nnmpi.comm.transport import mpi_job

        mpi_job.abort_job(status)
    is_interrupt = status == exit_hooks.INTERRUPTED
    os.kill(os.getpid(), signal.SIGINT if is_interrupt else signal.SIGKILL)


def _start(guard: bool) -> Comm:
    settings, error = _settings()
    try:
        with limited_start(settings.start if guard and has_launcher() else math.inf):
            from nnmpi.comm.transport import mpi, mpi_job
    except (ImportError, RuntimeError) as failure:  # no mpi4py, or no library behind it
        if launched() > 1:
            reason = str(failure).partition("\n")[0]
            raise _UnusableError(
                f"{launched()} ranks were started, but MPI cannot be used here ({reason}): install "
                "mpi4py and let it find the library of this mpirun (python -m nnmpi.doctor), or "
                "pip install 'nnmpi[mpi]' and use its mpirun"
            ) from failure
        return _single_rank(comm_self(), error)
    _, size = mpi_job.rank_and_size()
    if size == 1 < launched():
        raise _UnusableError(
            f"{launched()} ranks were started, but MPI sees only this one: "
            "use the mpirun of the MPI that mpi4py loads (python -m nnmpi.doctor shows both)"
        )
    if size == 1:
        return _single_rank(Comm(mpi.MPITransport.world()), error)
    if (outliving := _outliving()) and (problem := outliving.problem()):
        raise _UnusableError(problem)
    progress = Progress(CallLog(settings))
    return _start_guarded(progress, error) if guard else _connect(progress, error)[0]


def _settings() -> tuple[DebugSettings, ValueError | None]:
    """Reads NNMPI_DEBUG and NNMPI_TIMEOUT; returns (settings, None), or default settings and the
    ValueError for a wrong value. In a job of several ranks, all use the settings of rank 0."""
    try:
        return DebugSettings.of(os.environ), None
    except ValueError as error:
        return DebugSettings(), error


def _single_rank(comm: Comm, error: ValueError | None) -> Comm:
    """Returns a single rank's Comm; raises `error` for invalid debug settings."""
    if error is not None:
        raise error
    return comm


def _connect(progress: Progress, error: ValueError | None) -> tuple[Comm, "MPIChannel | None"]:
    """Connects all ranks; returns their Comm and, in a fault-tolerant job, the channel of their
    watchdogs. All ranks get the debug settings of rank 0, or raise its `error`."""
    from nnmpi.comm.transport import mpi

    agree = partial(_agree_on_settings, log=progress.log, error=error)
    if outliving := _outliving():
        connected: tuple[Comm, MPIChannel] = outliving.connected(progress, agree)
        return connected
    transport = mpi.MPITransport.world()
    agree(transport)
    return Comm(transport, progress=progress), None


OUTLIVING: Table[ModuleType] = Table("outliving")
"""Under "ulfm": the module that starts jobs whose ranks outlive others."""


def _outliving() -> Any:
    """The module that starts a fault-tolerant job; None if this job is not fault-tolerant."""
    outliving = OUTLIVING.row("ulfm")
    return outliving if outliving and outliving.is_available() else None


def _agree_on_settings(transport: Transport, log: CallLog, error: ValueError | None) -> None:
    first = (log.settings.compare, log.settings.timeout, error is not None)
    agreed = np.array(first if transport.rank == 0 else (0, 0, 0), float)
    transport.all_reduce(agreed)
    if agreed[2]:
        if error is not None and transport.rank == 0:
            raise error
        raise OtherRankError(str(error or "rank 0 cannot use NNMPI_TIMEOUT or NNMPI_DEBUG"))
    log.settings = DebugSettings(bool(agreed[0]), float(agreed[1]))


def _start_guarded(progress: Progress, error: ValueError | None) -> Comm:
    """Starts MPI for several ranks and returns their Comm, guarded by exception hooks and a
    watchdog. An `error` in the debug settings of rank 0 is raised on all ranks."""
    from nnmpi.comm.debug.watchdog import Watchdog  # a single rank has none
    from nnmpi.comm.transport import mpi_job, start_mpi

    outliving = _outliving()
    rank, size = mpi_job.rank_and_size()
    ending = exit_hooks.JobEnd(mpi_job.abort_job, outliving is not None)
    watchdog = Watchdog(rank, progress, ending)
    exit_hooks.install(rank, size, ending, watchdog.failures)
    start = CallSignature("world", "world", "", None, 0, -1)
    with progress.log.during(record_of(start, 0)):
        comm, channel = _connect(progress, error)
        if comm.any_thread:
            if outliving:  # before the channel, over which messages for it arrive
                watchdog.silent_ranks = outliving.SilentRankMonitor(watchdog, channel)
            watchdog.channel = channel or mpi_job.MPIChannel.of_job()
    if outliving:
        start_mpi.at_exit(outliving.remove_segments)  # runs after those registered below
    limit = progress.log.settings.timeout
    start_mpi.at_exit(lambda: limit_end(limit))  # runs after watchdog.leave
    mpi_job.before_finalize(exit_hooks.fatal(f"rank {rank} of {size}", ending)(watchdog.leave))
    return comm


def ended(status: int) -> int:
    """Returns the exit status of this rank, after waiting for the other ranks if it is not 0; all
    ranks pass the same one. A rank that ends last keeps the launcher of Open MPI from printing
    lines of its own below the error. A fault-tolerant job does not wait: its MPI would wait for
    lost ranks."""
    if status and _cached() and _cached()[0].size > 1 and not _cached()[0].fault_tolerant:
        from nnmpi.comm.transport import mpi_job

        flush_output()
        limit_end(2 * _settings()[0].timeout)  # the watchdog's own limit expires first
        mpi_job.end_last()
    return status


def mpi_versions() -> dict[str, str]:
    """The names and versions of MPI and mpi4py; empty if this process has not started MPI."""
    mpi = getattr(transports, "mpi_job", None)  # which starts MPI when it is imported
    return mpi.versions() if mpi else {}


def launched() -> int:
    """The number of ranks that the launcher has started; 1 without a launcher."""
    return next((int(os.environ[name]) for name in RANKS if name in os.environ), 1)


def job() -> Comm:
    """The Comm of `world()`; without a launcher a Comm of one rank, and MPI is not started."""
    return world() if has_launcher() else _single_rank(comm_self(), _settings()[1])


def has_launcher() -> bool:
    """True if a launcher has started this process, even as the only rank."""
    return any(name in os.environ for name in LAUNCHERS)
