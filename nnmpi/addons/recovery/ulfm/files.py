"""Memory that ranks of a node share through a file, without MPI calls that a loss could interrupt.

rank 0   file without a name ──► /proc/PID/fd/N ──► mapped by all ranks of the node
         [ segment 0 | segment 1 | ... ]             the memory is free when nobody maps it

MPI's own shared memory (`Win.Allocate_shared`) ends all ranks of a node if one of them dies during
the call, and is never freed after a loss.
"""

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.transport.base import Segments

FOLDER = "/dev/shm"
KERNEL = Path("/proc/sys/kernel/random/boot_id")
HAS_FILES = hasattr(os, "O_TMPFILE") and os.path.isdir(FOLDER) and KERNEL.exists()  # Linux


def node_number() -> int:
    """Returns a number that is equal on all ranks that can map each other's files: a hash of the
    kernel's boot id and the process namespace, in which a path /proc/PID means the same process."""
    name = KERNEL.read_text() + os.readlink("/proc/self/ns/pid")
    return int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big")


def map_segments(
    gather: Callable[[Sequence[int]], NDArray[np.int64]],
    is_first: bool,
    nbytes: int,
    barrier: Callable[[], None],
) -> Segments:
    """Maps a shared segment of `nbytes` for each rank of a node; collective.

    `gather` returns the values of all ranks, one row for each. All segments are in one file of the
    first rank (`is_first`): a process may open few files, but a node may have many ranks.
    """
    descriptor = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600) if is_first else -1
    try:
        pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        rows = gather([os.getpid(), descriptor, nbytes, pages]).tolist()
        process, number, *_ = rows[0]
        ends = [*accumulate(row[3] for row in rows)]
        mapped = memoryview(_mapped(process, number, ends[-1]))
        barrier()  # otherwise the first rank could close its file before others have opened it
    finally:
        if is_first:
            os.close(descriptor)
    buffers = [mapped[end - row[3] :][: row[2]] for row, end in zip(rows, ends, strict=True)]
    lock = threading.Lock()
    lock.acquire()

    def sync() -> None:
        """Acts as a memory fence, by releasing and acquiring a lock: earlier writes of this rank
        are visible to other ranks before later ones."""
        lock.release()
        lock.acquire()

    return Segments(buffers, sync, free=lambda: None)


def _mapped(process: int, number: int, nbytes: int) -> mmap.mmap:
    file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
    try:
        os.ftruncate(file, nbytes)  # on all ranks: the later calls change nothing
        return mmap.mmap(file, nbytes)
    finally:
        os.close(file)
