"""Sums through memory that the ranks of a node share: nothing is sent.

mine      what this rank adds, one segment a rank
total     the sum, one for all; rank i of the node adds up slice i of it

rank 0   mine [a0|b0|c0]──┐
rank 1   mine [a1|b1|c1]──┼──► total [a0+a1+a2 | b0+b1+b2 | c0+c1+c2]
rank 2   mine [a2|b2|c2]──┘            by rank 0   by rank 1   by rank 2

Of short arrays each rank adds up everything itself, in the same order: that takes one barrier
instead of two.
"""

from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS, among
from nnmpi.collectives.step import Algorithm, chunk_start
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.arguments import Array, accumulator
from nnmpi.comm.steps import OperationQueue, Steps
from nnmpi.comm.transport.base import Ledger, NoRoomError, ShortSum, Transport
from nnmpi.comm.transport.node_barrier import sum_loop

SHORT = 1 << 14  # bytes of arrays that each rank adds up itself
PAGE = 4096
USABLE = 0.9  # of the free shared memory


class NodeTopology(NamedTuple):
    """Which ranks share memory, and the algorithm that sums over nodes."""

    node: Transport
    ranks: tuple[int, ...]  # of the node, as the transport that was split numbers them
    leader_ring: Algorithm | None  # over the first rank of each node; None on a single node
    control: Interpreter  # for what ranks agree on here; on no ledger

    @classmethod
    def of(cls, transport: Transport) -> Self:
        """Splits the transport; collective."""
        node = transport.split_node()
        control = Interpreter(transport.duplicate(Ledger(transport.size)))
        numbers = {member: r for r, member in enumerate(transport.members)}
        ranks = tuple(numbers[member] for member in node.members)
        if node.size == transport.size:
            return cls(node, ranks, None, control)
        first = np.zeros(transport.size, np.uint8)
        first[transport.rank] = node.rank == 0
        control.finish(ALL_GATHERS["ring"], first)
        leaders = tuple(np.flatnonzero(first).tolist())
        return cls(node, ranks, among(ALGORITHMS["ring"], lambda p: leaders), control)

    def check_memory(self, needed: int, label: str, remedy: str) -> None:
        """Raises NoRoomError, on all ranks, where a node has too little: to run out kills the job.

        Collective.
        """
        free = self.node.free_memory()
        lacking = np.array([needed > USABLE * free], np.int64)
        self.control.finish(ALGORITHMS["doubling"], lacking)
        if lacking[0]:
            raise NoRoomError(
                f"{label} takes {needed:,} bytes, and {free:,} are free in "
                f"/dev/shm here: {remedy}, or enlarge it (docker run --shm-size)"
            )

    def free(self) -> None:
        """Frees the transports; collective."""
        self.node.free()
        self.control.free()


class SharedReduction:
    """Shared memory for sums over the ranks of a node, and over nodes where there are several.

    `mine` is what this rank adds, and `total` the sum, one memory for all ranks of the node.
    """

    def __init__(self, topology: NodeTopology, interpreter: Interpreter, n: int, dtype: Any):
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._node = topology.node
        self._leader_ring, self._interpreter = topology.leader_ring, interpreter
        self._queue = OperationQueue()
        self._sums_dtype = accumulator(self.dtype)
        segment, *extra = _sizes(n, self.dtype, 1)
        separate = self._sums_dtype is not self.dtype
        # a node rounds its sum where that is complete, or travels rounded
        self._rounds = separate and (self._leader_ring is None or interpreter.narrow_sums)
        self._window = self._node.window(segment + sum(extra) * (self._node.rank == 0))
        self._segments = [
            s[: n * self.dtype.itemsize].view(self.dtype) for s in self._window.segments
        ]
        self.mine: Array = self._segments[self._node.rank]
        self._window.segments[self._node.rank][...] = 0  # takes the memory now, while there is room
        self._window.barrier()  # from here on others may write to the total
        first = self._window.segments[0]
        self.total: Array = first[segment : segment + n * self.dtype.itemsize].view(self.dtype)
        sums_bytes = n * self._sums_dtype.itemsize
        self._sums = (
            first[2 * segment : 2 * segment + sums_bytes].view(self._sums_dtype)
            if separate
            else self.total
        )
        self._is_short = _is_short(n, self.dtype) and self._leader_ring is None
        self._turn = np.zeros(1, np.int64)  # which half of the segments the next short sum has
        self._halves: dict[int, list[tuple[Array, ...]]] = {}  # by length

    def slice(self, start: int, stop: int, r: int | None = None) -> slice:
        """Which of the elements start to stop - 1 this rank, or rank r of the node, adds up."""
        n, p, r = stop - start, self._node.size, self._node.rank if r is None else r
        return slice(start + chunk_start(n, p, r), start + chunk_start(n, p, r + 1))

    def reduce(self, start: int, stop: int, tag: int, blocks: bool) -> Steps:
        """Adds up elements start to stop - 1, after the sums that were started before.

        This rank's are in `mine`, and the sum is in `total`.
        """
        steps = self._reduce(start, stop, tag, blocks)
        return steps if blocks else self._queue.add(steps)

    def all_reduce(self, array: Array, tag: int, blocks: bool) -> Steps:
        """Sums arrays of the ranks' own in place; only what others need is copied."""
        if self._is_short:
            steps = self._exchange(array, blocks)
        else:
            steps = self._reduce(0, array.size, tag, blocks, array)
        return steps if blocks else self._queue.add(steps)

    def short_sum(self, n: int) -> ShortSum | None:
        """The sum of n numbers in one call, if it is short and there is compiled code for it."""
        if not self._is_short:
            return None
        return self._window.short_sum(self._turn, *self._half_segments(n))

    def _exchange(self, array: Array, blocks: bool) -> Steps:
        """Sums a short array. What is written in one turn has been read when the turn comes again:
        in between all ranks meet for the other one.
        """
        parts = self._half_segments(array.size)[self._turn[0]]
        self._turn ^= 1
        parts[self._node.rank][...] = array
        yield self._barrier(blocks)
        sum_loop(array, *parts)

    def _half_segments(self, n: int) -> list[tuple[Array, ...]]:
        """For each turn: where the ranks write n numbers."""
        if n not in self._halves:
            segments = [segment.view(self.dtype) for segment in self._window.segments]
            starts = 0, self.total.size
            self._halves[n] = [tuple(s[at : at + n] for s in segments) for at in starts]
        return self._halves[n]

    def _reduce(
        self, start: int, stop: int, tag: int, blocks: bool, array: Array | None = None
    ) -> Steps:
        """`array` has both this rank's elements and the sum, and begins with the first element."""
        slice_here, parts = self.slice(start, stop), list(self._segments)
        if array is not None:
            mine, parts[self._node.rank] = parts[self._node.rank], array
            for i, j in ((start, slice_here.start), (slice_here.stop, stop)):
                mine[i:j] = array[i:j]
        yield self._barrier(blocks)
        self._add(parts, slice_here.start, slice_here.stop)
        yield self._barrier(blocks)
        if self._leader_ring is not None:
            if self._node.rank == 0:
                total = self.total[start:stop]
                sums = total if self._rounds else self._sums[start:stop]
                yield from self._interpreter.steps(self._leader_ring, total, tag, blocks, sums)
            yield self._barrier(blocks)
        if array is not None:
            array[...] = self.total[:stop]

    def is_viewed(self) -> bool:
        """Forgets `mine` and `total`; returns whether arrays of others still view the memory."""
        del self._segments, self.mine, self.total, self._sums
        return self._window.is_viewed()

    def free(self) -> None:
        """Frees the memory; collective. `mine` and `total` are invalid afterwards."""
        self._segments = []
        self._halves.clear()
        self._window.free()

    def _barrier(self, blocks: bool) -> Any:
        """A barrier of the node, waited for if `blocks`; what this rank wrote is visible after."""
        if not blocks:
            return self._window.ibarrier()
        self._window.barrier()
        return ()

    def _add(self, parts: list[Array], lo: int, hi: int) -> None:
        """Adds up elements lo to hi - 1 over the node, always in the order of the ranks."""
        sum_loop(self._sums[lo:hi], *[part[lo:hi] for part in parts])
        if self._rounds:
            self.total[lo:hi] = self._sums[lo:hi]


def _sizes(n: int, dtype: np.dtype[Any], p: int) -> tuple[int, int, int]:
    """Bytes of the segments of p ranks, of the total, and of sums in a wider type, if any."""
    total, wider = _pages(n * dtype.itemsize), accumulator(dtype)
    segment = 2 * total if _is_short(n, dtype) else total
    return p * segment, total, _pages(n * wider.itemsize) * (wider is not dtype)


def _is_short(n: int, dtype: np.dtype[Any]) -> bool:
    """Whether each rank adds up everything; its segment then has two halves, used in turns."""
    return n * dtype.itemsize <= SHORT and accumulator(dtype) is dtype


def memory_of_sums(n: int, dtype: np.dtype[Any], p: int) -> int:
    """The bytes of shared memory behind sums of n numbers over p ranks of a node."""
    return sum(_sizes(n, dtype, p))


def _pages(nbytes: int) -> int:
    """Rounded up to whole pages, so that ranks seldom write to the same one."""
    return -(-max(nbytes, 1) // PAGE) * PAGE
