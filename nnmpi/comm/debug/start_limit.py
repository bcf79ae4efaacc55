"""Time limits for the start and the end of MPI, enforced by a second process.

A second process is needed since no Python thread runs inside MPI_Init and MPI_Finalize. At the
start it is a fork of the rank. It exits when MPI has started. It ends the job if the start takes
too long, or if another rank of this host has ended meanwhile: in a fault-tolerant job MPI_Init
would wait for that rank for ever.
"""

import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.stderr import print_error
from nnmpi.comm.transport import launcher

RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Environment variables in which launchers pass the rank number."""

BETWEEN_RANKS = 0.5  # seconds by which rank limits differ, so that only one rank prints
TIME_TO_READ = 0.2  # seconds in which the launcher reads what was printed
LOOK_INTERVAL = 1.0  # seconds between two looks at the other ranks
TIME_TO_START = 2.0  # seconds for which ranks may be missing: not started, or past the start


@contextmanager
def limited_start(timeout: float) -> Iterator[None]:
    """A context for the start of MPI; it ends the job after `timeout` seconds."""
    if timeout > threading.TIMEOUT_MAX or "mpi4py.MPI" in sys.modules:  # MPI runs already
        yield
        return
    process, parent = os.getpid(), os.getppid()
    ends, started = os.pipe()
    with warnings.catch_warnings():  # about forking with threads; the fork needs none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:  # no room for another process: the start has no limit
            child = None
    if child == 0:
        try:
            os.close(started)
            if problem := _problem(ends, timeout, parent):
                end_rank(process, parent, problem)
        finally:
            os._exit(0)
    os.close(ends)
    try:
        yield
    finally:
        os.close(started)
        with suppress(ChildProcessError):  # SIGCHLD is ignored: there is nothing to wait for
            if child is not None:
                os.waitpid(child, 0)


def _problem(ends: int, timeout: float, parent: int) -> str:
    """Waits until MPI has started and returns "", or returns the reason why the job must be ended
    after `timeout` seconds. The rank closes the pipe `ends` when it has started; `parent` is the
    launcher."""
    rank, began = rank_of(os.environ), time.monotonic()
    # later for higher ranks: the first rank that ends the job keeps the others from printing
    until, complete, now = began + timeout + BETWEEN_RANKS * min(rank, 5), began, began
    here = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "0")) * launcher.is_launcher(parent)
    while now < until:
        if select.select([ends], [], [], min(LOOK_INTERVAL, until - now))[0]:
            return ""
        now, left = time.monotonic(), ranks_of(parent) if here else {}
        if len(left) == here:
            complete = now
        elif now > complete + TIME_TO_START and rank == min(left):
            return (
                f"waits in MPI_Init for a rank that has ended (of {here} on this host, "
                f"{name_ranks(sorted(left))} still run); start the job again"
            )
    return (
        f"has waited for longer than NNMPI_TIMEOUT={timeout:g} s in MPI_Init, for all ranks to "
        f"start{stopped_ranks(parent)}"
    )


WATCHER_SCRIPT = """
import select, sys
limit, process, parent = map(float, sys.argv[1:4])
if not select.select([0], [], [], limit)[0]:
    sys.path[:] = sys.argv[4:]
    from nnmpi.comm.debug import start_limit
    start_limit.end_late(limit, int(process), int(parent))
"""


def limit_end(timeout: float) -> None:
    """Starts a process that ends this rank with a message after `timeout` seconds. It cannot be a
    thread, as none runs in MPI_Finalize, nor a fork, as a process that exits cannot fork."""
    if timeout > threading.TIMEOUT_MAX:
        return
    ends, _ = os.pipe()  # never closed here: the system closes it when this process ends
    numbers = map(str, (timeout, os.getpid(), os.getppid()))
    arguments = [sys.executable, "-S", "-c", WATCHER_SCRIPT, *numbers, *sys.path]
    files = [(os.POSIX_SPAWN_DUP2, ends, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
    with suppress(OSError):  # no memory for another process: the end has no limit
        os.posix_spawn(sys.executable, arguments, os.environ, file_actions=files)


def end_late(limit: float, process: int, parent: int) -> None:
    """Says that a rank has waited in MPI_Finalize, and ends it and its launcher's ranks."""
    time.sleep(BETWEEN_RANKS * min(rank_of(os.environ), 5))
    problem = f"has waited for longer than NNMPI_TIMEOUT={limit:g} s for the end of MPI"
    end_rank(process, parent, problem + stopped_ranks(parent))


def end_rank(process: int, parent: int, problem: str) -> None:
    """Prints a rank's problem; ends its launcher with all ranks, and its process."""
    print_error(f"rank {rank_of(os.environ)} {problem}")
    time.sleep(TIME_TO_READ)
    launcher.terminate(parent)
    os.kill(process, signal.SIGKILL)


def ranks_of(parent: int) -> dict[int, str]:
    """The ranks on this host under a launcher, with their state letters in /proc."""
    states = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # it has ended, or belongs to another user
            state, by, *_ = status.read_text().rpartition(")")[2].split()
            if int(by) == parent:
                pairs = status.with_name("environ").read_text().split("\0")
                environment = dict(pair.partition("=")[::2] for pair in pairs)
                if environment.keys() & {*RANK}:  # otherwise it is a helper of the launcher
                    states[rank_of(environment)] = state
    return states


def stopped_ranks(parent: int) -> str:
    """Returns text that names those ranks of the launcher `parent` on this host that are stopped
    (by SIGSTOP, for instance), to append to a message; "" if there are none."""
    stopped = sorted(rank for rank, state in ranks_of(parent).items() if state in "Tt")
    return f"; stopped here: {name_ranks(stopped)}" if stopped else ""


def rank_of(environment: "os._Environ[str] | dict[str, str]") -> int:
    """The rank number that the launcher has passed in the environment; 0 if there is none."""
    return next((int(environment[name]) for name in RANK if name in environment), 0)
