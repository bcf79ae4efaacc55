"""Sums through memory that the ranks of a node share: nothing is sent.

mine      the values that this rank adds: each rank has a segment of shared memory for them
total     the sum, one array for all; rank i of the node adds up slice i of it

rank 0   mine [a0|b0|c0]──┐
rank 1   mine [a1|b1|c1]──┼──► total [a0+a1+a2 | b0+b1+b2 | c0+c1+c2]
rank 2   mine [a2|b2|c2]──┘            by rank 0   by rank 1   by rank 2

Short arrays each rank adds up itself, in the same order, with one barrier instead of two.
"""

from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS
from nnmpi.collectives.combine import among
from nnmpi.collectives.step import Algorithm, chunk_start
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.arguments import Array, accumulator
from nnmpi.comm.steps import OperationQueue, Steps
from nnmpi.comm.transport.base import PENDING, Ledger, NoRoomError, ShortSum, Transport
from nnmpi.comm.transport.node_barrier import sum_loop

WHOLE_SUM_BYTES = 1 << 14  # bytes up to which each rank adds up the whole array
PAGE = 4096
USABLE = 0.9  # share of the free shared memory that a sum may take


class NodeTopology(NamedTuple):
    """The division of ranks into nodes: the ranks that share memory with this one, and, if there
    are several nodes, the algorithm by which the first ranks of the nodes sum over the nodes."""

    node: Transport
    size: int  # of the transport that was split
    ranks: tuple[int, ...]  # of the node, numbered as in that transport
    leader_ring: Algorithm | None  # over the first rank of each node; None on a single node
    control: Interpreter  # for agreements of the ranks; not counted in the traffic of the run
    is_apart: bool = False  # each rank is alone on its node

    @classmethod
    def of(cls, transport: Transport) -> Self:
        """Finds out which ranks of a transport share memory; collective."""
        node, size = transport.split_node(), transport.size
        control = Interpreter(transport.duplicate(Ledger(size)))
        numbers = {member: r for r, member in enumerate(transport.members)}
        ranks = tuple(numbers[member] for member in node.members)
        if node.size == size:
            return cls(node, size, ranks, None, control)
        first = np.zeros(size, np.uint8)
        first[transport.rank] = node.rank == 0
        control.finish(ALL_GATHERS["ring"], first)
        leaders = tuple(np.flatnonzero(first).tolist())
        ring = among(ALGORITHMS["ring"], lambda p: leaders)
        return cls(node, size, ranks, ring, control, len(leaders) == size)

    def check_memory(self, needed: int, label: str, remedy: str) -> None:
        """Raises NoRoomError on all ranks if a node has less shared memory than `needed` bytes;
        collective. Without it, the first write to a page without memory would kill the process."""
        free = np.zeros(self.size, np.int64)
        free[self.ranks[self.node.rank]] = self.node.free_memory()
        self.control.finish(ALL_GATHERS["ring"], free)
        if needed > USABLE * (least := int(free.min())):
            raise NoRoomError(
                f"{label} takes {needed:,} bytes, and {least:,} are free in /dev/shm on the node "
                f"of rank {free.argmin()}: {remedy}, or enlarge it (docker run --shm-size)"
            )

    def free(self) -> None:
        """Frees the transports; collective."""
        self.node.free()
        self.control.free()


class SharedReduction:
    """Shared memory for sums over the ranks of a node, and then over the nodes: `mine` has the
    values that this rank adds, `total` the sum, one array for all ranks of the node."""

    def __init__(self, topology: NodeTopology, interpreter: Interpreter, n: int, dtype: Any):
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._node = topology.node
        self._leader_ring, self._interpreter = topology.leader_ring, interpreter
        self._queue = OperationQueue()
        self._sums_dtype = accumulator(self.dtype)
        segment, *extra = _sizes(n, self.dtype, 1)
        separate = self._sums_dtype is not self.dtype
        # a node rounds its own sum if that is complete, or if it travels in 16 bits
        self._rounds = separate and (self._leader_ring is None or interpreter.narrow_sums)
        self._window = self._node.window(segment + sum(extra) * (self._node.rank == 0))
        self._segments = [
            s[: n * self.dtype.itemsize].view(self.dtype) for s in self._window.segments
        ]
        self.mine: Array = self._segments[self._node.rank]
        # allocates the pages now: a later page fault without room would end the process by SIGBUS
        self._window.segments[self._node.rank][...] = 0
        self._window.barrier(0)  # the first rank has zeroed the total: others may write to it now
        first = self._window.segments[0]
        self.total: Array = first[segment : segment + n * self.dtype.itemsize].view(self.dtype)
        sums_bytes = n * self._sums_dtype.itemsize
        self._sums = (
            first[2 * segment : 2 * segment + sums_bytes].view(self._sums_dtype)
            if separate
            else self.total
        )
        self._is_short = _is_short(n, self.dtype) and self._leader_ring is None
        # first the half of the segments that the next short sum uses
        self._turn = np.zeros(3, np.int64)
        self._halves: dict[int, list[tuple[Array, ...]]] = {}  # by length

    def slice(self, start: int, stop: int, r: int | None = None) -> slice:
        """The slice of elements start..stop-1 that this rank, or rank r of the node, adds up."""
        n, p, r = stop - start, self._node.size, self._node.rank if r is None else r
        return slice(start + chunk_start(n, p, r), start + chunk_start(n, p, r + 1))

    def reduce(self, start: int, stop: int, tag: int, blocks: bool) -> Steps:
        """Sums elements start..stop-1 of all segments `mine` into `total`: a generator of requests.

        With `blocks`, it may block in barriers. Without, several sums may be pending, each begun
        when earlier ones in this memory are complete. `tag`: for messages between nodes.
        """
        steps = self._reduce(start, stop, tag, blocks)
        return steps if blocks else self._queue.add(steps)

    def all_reduce(self, array: Array, tag: int, blocks: bool) -> Steps:
        """Sums `array`, which lies outside shared memory, in place; of a long one, a rank copies
        there only the elements that other ranks add up. `tag` and `blocks` as in `reduce`."""
        if self._is_short:
            steps = self._exchange(array, tag, blocks)
        else:
            steps = self._reduce(0, array.size, tag, blocks, array)
        return steps if blocks else self._queue.add(steps)

    def short_sum(self, n: int, first_tag: int) -> ShortSum | None:
        """Returns a compiled all-reduce of n elements; None if n is large or code is missing."""
        if not self._is_short:
            return None
        return self._window.short_sum(first_tag, self._turn, *self._half_segments(n))

    def _exchange(self, array: Array, tag: int, blocks: bool) -> Steps:
        """Sums a short array over the ranks of a node through shared memory, with a single barrier:
        a generator of the requests to wait for. With `blocks` it may wait in the barrier.

        Each rank's segment has two halves, used in turns. A half is overwritten only in the next
        but one sum; the barrier of the sum between ensures that all ranks have read it.
        """
        parts = self._half_segments(array.size)[self._turn[0]]
        self._turn[0] ^= 1
        parts[self._node.rank][...] = array
        yield self._barrier(tag, blocks)
        sum_loop(array, *parts)

    def _half_segments(self, n: int) -> list[tuple[Array, ...]]:
        """Returns the arrays of n elements in which ranks put what they add, cached by n: for each
        of the two halves, a tuple with one of each rank."""
        if n not in self._halves:
            segments = [segment.view(self.dtype) for segment in self._window.segments]
            starts = 0, self.total.size
            self._halves[n] = [tuple(s[at : at + n] for s in segments) for at in starts]
        return self._halves[n]

    def _reduce(
        self, start: int, stop: int, tag: int, blocks: bool, array: Array | None = None
    ) -> Steps:
        """Does what `reduce` says; `array`, if given, replaces `mine` and gets the sum."""
        slice_here, parts = self.slice(start, stop), list(self._segments)
        if array is not None:
            mine, parts[self._node.rank] = parts[self._node.rank], array
            # this rank adds its own slice from `array` itself; others read the rest from `mine`
            for i, j in ((start, slice_here.start), (slice_here.stop, stop)):
                mine[i:j] = array[i:j]
        yield self._barrier(tag, blocks)
        self._add(parts, slice_here.start, slice_here.stop)
        yield self._barrier(tag, blocks)
        if self._leader_ring is not None:
            if self._node.rank == 0:
                total = self.total[start:stop]
                sums = total if self._rounds else self._sums[start:stop]
                yield from self._interpreter.steps(self._leader_ring, total, tag, blocks, sums)
            yield self._barrier(tag, blocks)
        if array is not None:
            array[...] = self.total[:stop]

    def is_viewed(self) -> bool:
        """Drops `mine` and `total` before `free`; True if other arrays still view the memory."""
        del self._segments, self.mine, self.total, self._sums
        return self._window.is_viewed()

    def free(self) -> None:
        """Frees the memory; collective. `mine` and `total` are invalid afterwards."""
        self._segments = []
        self._halves.clear()
        self._window.free()

    def _barrier(self, tag: int, blocks: bool) -> Any:
        """Starts a barrier of the node, and waits for it if `blocks`."""
        mark = tag - tag % PENDING  # the first tag, which compiled sums know
        if not blocks:
            return self._window.ibarrier(mark)
        self._window.barrier(mark)
        return ()

    def _add(self, parts: list[Array], lo: int, hi: int) -> None:
        """Adds up elements lo..hi-1 of the parts of all ranks, in rank order."""
        sum_loop(self._sums[lo:hi], *[part[lo:hi] for part in parts])
        if self._rounds:
            self.total[lo:hi] = self._sums[lo:hi]


def _sizes(n: int, dtype: np.dtype[Any], p: int) -> tuple[int, int, int]:
    """Returns bytes of shared memory for sums of n elements: inputs, total, and wider sums."""
    total, wider = _pages(n * dtype.itemsize), accumulator(dtype)
    segment = 2 * total if _is_short(n, dtype) else total
    return p * segment, total, _pages(n * wider.itemsize) * (wider is not dtype)


def _is_short(n: int, dtype: np.dtype[Any]) -> bool:
    """True if arrays of n elements are so short that each rank of a node adds up all elements
    itself; its segment then has two halves, used in turns."""
    return n * dtype.itemsize <= WHOLE_SUM_BYTES and accumulator(dtype) is dtype


def memory_of_sums(n: int, dtype: np.dtype[Any], p: int) -> int:
    """The bytes of shared memory for sums of n elements over p ranks of a node."""
    return sum(_sizes(n, dtype, p))


def _pages(nbytes: int) -> int:
    """Rounds a number of bytes up to whole pages, so that ranks seldom write to the same page."""
    return -(-max(nbytes, 1) // PAGE) * PAGE
