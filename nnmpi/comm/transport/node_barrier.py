"""Shared memory of a node's ranks, with a barrier in it: each rank counts its arrivals.

rank 0   [ segment, of any length ....... | 3 ]
rank 1   [ segment .... | 3 ]
rank 2   [ segment .......... | 2 ]    has not arrived for the third time: ranks 0 and 1 wait
"""

import ctypes
import errno
import gc
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnmpi.arrays import native
from nnmpi.arrays.native.table import InOut, Out, kernel
from nnmpi.comm.transport.base import Bytes, Segments, SharedWindow, ShortSum

Counts = NDArray[np.int64]
Numbers = NDArray[Any]

BLOCK = 1 << 19  # bytes added at a time: the partial sum stays in the second-level cache
LINE = 64  # bytes: counts of two ranks are in different cache lines
LOOKS = 1000  # reads of other ranks' counts before each call of MPI, which moves messages
SOON = 100  # reads of other ranks' counts before a rank counts as waiting


@kernel
def sum_loop(out: Out, *parts: Numbers) -> None:
    """Writes parts[0] + parts[1] + ... to `out`, added from left to right in the type of `out`."""
    first, *rest = parts
    step = BLOCK // out.itemsize
    for i in range(0, out.size, step):
        block, to = slice(i, i + step), out[i : i + step]
        if rest:
            np.add(first[block], rest[0][block], to, dtype=out.dtype)
        else:
            to[...] = first[block]
        for part in rest[1:]:
            np.add(to, part[block], to)


@kernel
def meet_loop(
    own: InOut,
    here: InOut,
    count: int,
    mark: int,
    looks: int,
    sync: Callable[[], Any],
    others: tuple[Counts, ...],
) -> None:
    """Enters a barrier of a node's ranks: writes how often this rank has arrived, `count`, to
    `own`, then checks up to `looks` times if `others` have come as far, with the same `mark`;
    here[0] becomes 1 if so, else 0.

    A counter is followed by two marks, of even and of odd counts, since a rank may be in the next
    barrier already. `sync` makes writes visible; the compiled kernel uses atomic stores and loads.
    """
    at = 1 + count % 2
    own[at] = mark
    sync()
    own[0] = count
    for _ in range(looks):
        here[0] = all(other[0] >= count and other[at] == mark for other in others)
        if here[0]:
            break
        os.sched_yield()
    sync()


class Barrier:
    """A barrier of a node's ranks in shared memory: each rank counts its arrivals.

    A rank arrives with a mark, which stands for the call that it makes; ranks with different marks
    wait for each other for ever, and the watchdog then says how their calls differ. The object is
    also the request that `arrive` returns, so `test` and `wait` are for the last arrival.
    """

    def __init__(
        self,
        counts: Sequence[Counts],
        rank: int,
        sync: Callable[[], Any],
        progress: Callable[[], Any],
    ) -> None:
        # `here` is private memory: writing to a cache line that others read is slow
        self._here, self._progress = np.zeros(1, np.int64), progress
        self._own, self._rank, self._mark = counts[rank], rank, 0
        self._others = (*counts[:rank], *counts[rank + 1 :])
        self._after = sync, self._others

    def arrive(self, mark: int = 0) -> "Barrier":
        """Arrives without waiting; this rank's earlier writes become visible."""
        self._mark = mark
        self._look(self._own.item(0) + 1, 1)
        return self

    def barrier(self, mark: int = 0) -> None:
        """Arrives, and returns when all ranks have arrived with the same mark."""
        self._mark = mark
        self._wait(self._own.item(0) + 1)

    def test(self) -> bool:
        """True if all ranks have arrived as often: their writes before are visible. Never waits."""
        return self._look(self._own.item(0), 1)

    def wait(self) -> None:
        """Returns when all ranks have arrived as often as this one."""
        self._wait(self._own.item(0))

    def short_sum(self, mark: int, turn: Counts, *parts: tuple[Numbers, ...]) -> ShortSum | None:
        """Returns compiled code that sums short arrays of all ranks of a node, or None.

        `parts` are two tuples with an array of each rank in shared memory, used in turns: turn[0]
        is the next. A rank writes what it adds to its array in parts[turn[0]] and arrives at the
        barrier with `mark`, then all arrays of that tuple are added. So one barrier is enough for
        each sum.
        """
        make = native.kernel("marked_sum")
        counts = self._own, turn, *self._others
        call = make(SOON, self._rank, mark, counts, *parts) if make else None

        def wait(array: Numbers) -> None:
            self._mark = mark
            self.wait()
            sum_loop(array, *parts[1 - turn[0]])

        return call and ShortSum(call, wait)

    def _look(self, count: int, looks: int) -> bool:
        meet_loop(self._own, self._here, count, self._mark, looks, *self._after)
        return bool(self._here[0])

    def _wait(self, count: int) -> None:
        while not self._look(count, LOOKS):
            self._progress()  # messages that this rank has sent may need the library to move them


def length(nbytes: int) -> int:
    """Returns a rank's bytes of shared memory: data, padding, barrier count and marks."""
    return -(-nbytes // LINE) * LINE + LINE


def shared_window(
    memory: Segments,
    rank: int,
    barrier: Callable[[], None],
    make_barrier: Callable[[Sequence[Counts], int, Callable[[], Any]], Barrier],
) -> SharedWindow:
    """Returns the SharedWindow of a node; every rank of the node calls it.

    memory        one buffer of shared memory for each rank; its end has room for a count and marks
    rank          the index of this rank among the ranks of the node
    barrier       a barrier of these ranks that needs no shared memory, such as MPI's; called once
    make_barrier  makes the barrier in shared memory, from the barrier counts of all ranks, `rank`,
                  and a function that is a memory fence

    Raises MemoryError on a rank that cannot write its buffer; the others wait in `barrier`.
    """
    if not has_room(np.frombuffer(memory.buffers[rank], np.uint8)):
        raise MemoryError("shared memory of the barrier cannot be written")
    pairs = [(m, len(m) - LINE) for m in memory.buffers]
    counts = [np.frombuffer(m, np.int64, 3, behind) for m, behind in pairs]
    counts[rank][:] = 0
    barrier()
    segments = [np.frombuffer(m, np.uint8, behind) for m, behind in pairs]
    made = make_barrier(counts, rank, memory.sync)

    def is_viewed() -> bool:
        views = [weakref.ref(segment) for segment in segments]
        segments.clear()
        if any(view() is not None for view in views):
            gc.collect()  # some views may be unreachable, in reference cycles
        return any(view() is not None for view in views)

    moves = made.barrier, made.arrive, made.short_sum
    return SharedWindow(segments, *moves, memory.free, is_viewed)


def has_room(segment: Bytes) -> bool:
    """Allocates the pages of a segment; returns False if there is no memory for them: a write would
    end the process by SIGBUS. True if the system cannot tell."""
    if sys.platform != "linux" or not segment.size:
        return True
    populate_write = 23  # MADV_POPULATE_WRITE, from Linux 5.14 on
    address = segment.__array_interface__["data"][0]
    skew = address % mmap.PAGESIZE
    start, nbytes = ctypes.c_void_p(address - skew), ctypes.c_size_t(segment.size + skew)
    failed = ctypes.CDLL(None, use_errno=True).madvise(start, nbytes, populate_write)
    return not failed or ctypes.get_errno() not in (errno.EFAULT, errno.ENOMEM)
