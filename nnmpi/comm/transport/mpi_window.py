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

from nnmpi.comm.transport.base import Bytes, Segments, SharedWindow
from nnmpi.comm.transport.gate import LINE, Counts, Gate
from nnmpi.comm.transport.start_mpi import MPI


class LacksRoomError(Exception):
    """A segment has no memory behind it, though there was room for it a moment ago."""


def allocate(comm: MPI.Intracomm, nbytes: int) -> Segments:
    """A segment of so many bytes on this rank; collective."""
    window = MPI.Win.Allocate_shared(nbytes, 1, comm=comm)
    window.Lock_all()

    def free() -> None:
        window.Unlock_all()
        window.Free()

    buffers = [window.Shared_query(r)[0] for r in range(comm.Get_size())]
    return Segments(buffers, window.Sync, free)


def length(nbytes: int) -> int:
    """Of a segment for so many bytes, with the count behind them."""
    return -(-nbytes // LINE) * LINE + LINE


def make_window(
    memory: Segments,
    rank: int,
    barrier: Callable[[], None],
    gate: Callable[[Sequence[Counts], int, Callable[[], Any]], Gate],
) -> SharedWindow:
    """The window of these segments; collective.

    Raises LacksRoomError on the ranks that lack room: the others wait for them.
    """
    if not has_room(np.frombuffer(memory.buffers[rank], np.uint8)):
        raise LacksRoomError("a page of it cannot be written")
    pairs = [(m, len(m) - LINE) for m in memory.buffers]
    counts = [np.frombuffer(m, np.int64, 1, behind) for m, behind in pairs]
    counts[rank][:] = 0
    barrier()
    segments = [np.frombuffer(m, np.uint8, behind) for m, behind in pairs]
    made = gate(counts, rank, memory.sync)

    def is_viewed() -> bool:
        views = [weakref.ref(segment) for segment in segments]
        segments.clear()
        if any(view() is not None for view in views):
            gc.collect()  # some may only wait for it
        return any(view() is not None for view in views)

    moves = made.barrier, made.arrive, made.short_sum
    return SharedWindow(segments, *moves, memory.free, is_viewed)


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
