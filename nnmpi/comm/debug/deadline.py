"""NNMPI_TIMEOUT while MPI starts and ends: a process beside each rank kills it when time is up.

A thread of the rank could not: MPI_Init and MPI_Finalize keep the interpreter's lock, and a rank
that is stopped runs no thread. The launcher ends the job when a rank is killed.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from nnmpi.comm.debug import deadline_process

Tell = Callable[[str], None]
"""Tells where the rank is: from now on it may spend so many seconds there; "" sets no deadline."""


def start_process(rank: str, patience: float, timeout: float) -> Tell:
    """Starts the process, which ends when this one does.

    It gives a rank that is not stopped itself `patience` more seconds.
    """
    own, most = os.getpid(), threading.TIMEOUT_MAX / 2
    arguments = (str(own), rank, f"{min(timeout, most)}", f"{patience}")
    # Nothing but the end of this process closes the pipe: Python's own end comes before MPI's.
    reads, writes = os.pipe()
    subprocess.Popen(
        [sys.executable, "-I", "-S", deadline_process.__file__, *arguments],
        stdin=reads,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # signals to the group of the rank shall not reach it
    )
    os.close(reads)

    def tell(place: str) -> None:
        if os.getpid() == own:  # a fork is no rank
            with suppress(OSError):  # the process is gone
                os.write(writes, f"{place}\n".encode())

    return tell


def nobody(place: str) -> None:
    """Where there is no such process, since NNMPI_TIMEOUT is not set."""


@contextmanager
def within(tell: Tell, place: str) -> Iterator[None]:
    """Around what has to be over in time."""
    tell(place)
    try:
        yield
    finally:
        tell("")
