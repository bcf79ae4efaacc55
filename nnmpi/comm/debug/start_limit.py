"""A limit on the time in which MPI starts: no thread of Python runs in MPI_Init, so a process does.

It is a fork of the rank, which ends with the start, or ends the rank where that lasts too long.
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

RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Where launchers say which rank a process is."""

BETWEEN_RANKS = 0.2  # seconds: the first rank that ends ends the others before they print the same


@contextmanager
def limited_start(timeout: float) -> Iterator[None]:
    """Ends this process, with a line, if the block takes longer than so many seconds."""
    if timeout > threading.TIMEOUT_MAX or "mpi4py.MPI" in sys.modules:  # MPI runs already
        yield
        return
    rank, process, launcher = rank_of(os.environ), os.getpid(), os.getppid()
    ends, started = os.pipe()
    with warnings.catch_warnings():  # of threads; the fork calls nothing that needs them
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:  # no room for a process: the start has no limit
            child = None
    if child == 0:
        try:
            os.close(started)
            wait = timeout + BETWEEN_RANKS * min(rank, 5)
            if not select.select([ends], [], [], wait)[0]:
                print_error(
                    f"rank {rank} has waited for longer than NNMPI_TIMEOUT={timeout:g} s in "
                    f"MPI_Init, for all ranks to start{stopped_ranks(launcher)}"
                )
                time.sleep(BETWEEN_RANKS)  # else the launcher may not have read it
                os.kill(process, signal.SIGKILL)
        finally:
            os._exit(0)
    os.close(ends)
    try:
        yield
    finally:
        os.close(started)
        with suppress(ChildProcessError):  # where SIGCHLD is ignored
            if child is not None:
                os.waitpid(child, 0)


def stopped_ranks(launcher: int) -> str:
    """Which processes of a launcher are stopped, to append to a line; nothing if none is known."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # it has ended, or is another user's
            state, parent, *_ = status.read_text().rpartition(")")[2].split()
            if state in "Tt" and int(parent) == launcher:
                pairs = status.with_name("environ").read_text().split("\0")
                environment = dict(pair.partition("=")[::2] for pair in pairs)
                if environment.keys() & {*RANK}:  # else it helps the launcher
                    found.append(rank_of(environment))
    return f"; stopped here: {name_ranks(sorted(found))}" if found else ""


def rank_of(environment: "os._Environ[str] | dict[str, str]") -> int:
    """The rank that a launcher has started, by its environment."""
    return next((int(environment[name]) for name in RANK if name in environment), 0)
