"""Memory that ranks of a node share, without a call of MPI that a death could interrupt.

rank 0   file without a name ──► /proc/PID/fd/N ──► mapped by all ranks
rank 1   file without a name ──► ...                 the memory is free when nobody maps it

MPI's own (`Win.Allocate_shared`) ends all ranks of a node where one of them dies meanwhile, and is
never free again after a loss.
"""

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.transport.mpi_window import Segments

FOLDER = "/dev/shm"
KERNEL = Path("/proc/sys/kernel/random/boot_id")
HAS_FILES = hasattr(os, "O_TMPFILE") and os.path.isdir(FOLDER) and KERNEL.exists()  # Linux


def node_number() -> int:
    """The same on all ranks that can map each other's files: one kernel numbers their processes."""
    name = KERNEL.read_text() + os.readlink("/proc/self/ns/pid")
    return int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big")


def map_files(
    gather: Callable[[Sequence[int]], NDArray[np.int64]], nbytes: int, barrier: Callable[[], None]
) -> Segments:
    """A segment of so many bytes on this rank; collective. `gather` returns a row of each rank."""
    own = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        os.ftruncate(own, nbytes)
        buffers = [_mapped(*file) for file in gather([os.getpid(), own, nbytes]).tolist()]
        barrier()  # else a rank could close its file before others have opened it
    finally:
        os.close(own)
    lock = threading.Lock()
    lock.acquire()

    def sync() -> None:
        """A release and an acquire of a lock: no access to memory passes both."""
        lock.release()
        lock.acquire()

    return Segments(buffers, sync, free=lambda: None)


def _mapped(process: int, number: int, nbytes: int) -> mmap.mmap:
    file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
    try:
        return mmap.mmap(file, nbytes)
    finally:
        os.close(file)
