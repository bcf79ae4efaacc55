"""Memory that ranks of a node share, as MPI makes it: a segment a rank, and the count of its gate.

rank 0   [ segment, of any length ....... | count ]
rank 1   [ segment .... | count ]
"""

import ctypes
import errno
import gc
import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi.comm.transport.base import Bytes, SharedWindow
from nnmpi.comm.transport.gate import LINE, Counts, Gate
from nnmpi.comm.transport.start_mpi import MPI


class LacksRoomError(Exception):
    """A segment has no memory behind it, though there was room for it a moment ago."""


def make_window(
    comm: MPI.Intracomm,
    nbytes: int,
    barrier: Callable[[], None],
    gate: Callable[[Sequence[Counts], int, Callable[[], Any]], Gate],
) -> SharedWindow:
    """Allocates a segment of so many bytes on this rank; collective.

    Raises LacksRoomError, or what MPI raises, on the ranks that lack room: the others wait.
    """
    size, rank = -(-nbytes // LINE) * LINE, comm.Get_rank()  # the count is behind
    window = MPI.Win.Allocate_shared(size + LINE, 1, comm=comm)
    memories: list[Any] = [window.Shared_query(r)[0] for r in range(comm.Get_size())]
    if not has_room(np.frombuffer(memories[rank], np.uint8)):
        raise LacksRoomError("a page of it cannot be written")
    window.Lock_all()
    behind = [len(memory) - LINE for memory in memories]
    counts = [np.frombuffer(m, np.int64, 1, at) for m, at in zip(memories, behind, strict=True)]
    counts[rank][:] = 0
    barrier()
    segments = [np.frombuffer(m, np.uint8, at) for m, at in zip(memories, behind, strict=True)]
    made = gate(counts, rank, window.Sync)

    def free() -> None:
        window.Unlock_all()
        window.Free()

    def is_viewed() -> bool:
        views = [weakref.ref(segment) for segment in segments]
        segments.clear()
        if any(view() is not None for view in views):
            gc.collect()  # some may only wait for it
        return any(view() is not None for view in views)

    moves = made.barrier, made.arrive, made.exchange
    return SharedWindow(segments, window.Sync, *moves, free, is_viewed)


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
