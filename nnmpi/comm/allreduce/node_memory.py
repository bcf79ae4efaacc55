"""Sums through memory that the ranks of a node share: nothing is sent.

mine      what this rank adds, one segment a rank
total     the sum, one for all; rank i of the node adds up slice i of it

rank 0   mine [a0|b0|c0]──┐
rank 1   mine [a1|b1|c1]──┼──► total [a0+a1+a2 | b0+b1+b2 | c0+c1+c2]
rank 2   mine [a2|b2|c2]──┘            by rank 0   by rank 1   by rank 2
"""

from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS, among
from nnmpi.collectives.step import Algorithm, cut
from nnmpi.comm.allreduce.interpreter import Array, Runner, Steps, wide
from nnmpi.comm.progress.turns import Turns
from nnmpi.comm.transport.base import Ledger, NoRoomError, Request, Transport

BLOCK = 1 << 19  # bytes added at a time: the sum so far stays in the second-level cache
PAGE = 4096
MOST = 0.9  # of the free shared memory


class Levels(NamedTuple):
    """Which ranks share memory, and the sum over the nodes they make up."""

    node: Transport
    ranks: tuple[int, ...]  # of the node, as the transport that was divided numbers them
    nodes: Algorithm | None  # a ring of the first ranks of all nodes; None where there is one node
    quiet: Runner  # for what ranks agree on here; on no ledger

    @classmethod
    def of(cls, wire: Transport) -> Self:
        """Every rank of the transport calls it."""
        node, quiet = wire.split_node(), Runner(wire.duplicate(Ledger(wire.size)))
        numbers = {member: r for r, member in enumerate(wire.members)}
        ranks = tuple(numbers[member] for member in node.members)
        if node.size == wire.size:
            return cls(node, ranks, None, quiet)
        first = np.zeros(wire.size, np.uint8)
        first[wire.rank] = node.rank == 0
        quiet.finish(ALL_GATHERS["ring"], first)
        leaders = tuple(np.flatnonzero(first).tolist())
        return cls(node, ranks, among(ALGORITHMS["ring"], lambda p: leaders), quiet)

    def check_room_for_sums(self, n: int, dtype: Any) -> None:
        """The same for the memory behind sums of n numbers."""
        needed = sum(_sizes(n, np.dtype(dtype), self.node.size))
        self.check_room(needed, "a sum through shared memory", "take another algorithm")

    def check_room(self, needed: int, what: str, instead: str) -> None:
        """Raises NoRoomError, on all ranks, where a node has no room: to run out kills the job."""
        free = self.node.room()
        lacking = np.array([needed > MOST * free], np.int64)
        self.quiet.finish(ALGORITHMS["doubling"], lacking)
        if lacking[0]:
            raise NoRoomError(
                f"{what} takes {needed:,} bytes, and {free:,} are free in "
                f"/dev/shm here: {instead}, or enlarge it (docker run --shm-size)"
            )

    def free(self) -> None:
        """Gives back what was made; every rank calls it."""
        self.node.free()
        self.quiet.free()


class Segments:
    """The memory behind a sum over the ranks of a node, and over nodes where there are several."""

    def __init__(self, levels: Levels, runner: Runner, n: int, dtype: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        # barriers of its own, which those of other windows cannot overtake
        self._node = levels.node.duplicate()
        self._nodes, self._runner, self._turns = levels.nodes, runner, Turns()
        self._sums_dtype = wide(self.dtype)
        own, *extra = _sizes(n, self.dtype, 1)
        apart = self._sums_dtype is not self.dtype
        self._sum = partial(np.add, dtype=self._sums_dtype) if apart else np.add
        self._window = self._node.window(own + sum(extra) * (self._node.rank == 0))
        self._segments = [
            s[: n * self.dtype.itemsize].view(self.dtype) for s in self._window.segments
        ]
        self._window.segments[self._node.rank][...] = 0  # takes the memory now, while there is room
        self._node.barrier()  # from here on others may write to the total
        first = self._window.segments[0]
        self._total = first[own : own + n * self.dtype.itemsize].view(self.dtype)
        wide_bytes = n * self._sums_dtype.itemsize
        self._sums = (
            first[2 * own : 2 * own + wide_bytes].view(self._sums_dtype) if apart else self._total
        )

    def mine(self, n: int) -> Array:
        """What this rank adds: n elements."""
        segment: Array = self._segments[self._node.rank]
        return segment[:n]

    def total(self, n: int) -> Array:
        """The sum, one memory for all ranks of the node."""
        total: Array = self._total
        return total[:n]

    def slice(self, start: int, stop: int) -> slice:
        """What this rank adds up of elements start to stop - 1."""
        n, p, r = stop - start, self._node.size, self._node.rank
        return slice(start + cut(n, p, r), start + cut(n, p, r + 1))

    def reduce(
        self, start: int, stop: int, tag: int, blocks: bool, array: Array | None = None
    ) -> Steps:
        """Adds up elements start to stop - 1. Yields while others are waited for, or, if `blocks`,
        waits itself. Those that are under way together pass one by one.

        This rank's are in `mine`, and the sum is in `total`. Or both are in an array of its own,
        which begins with the first element: then only what others need is copied.
        """
        return self._turns.take(self._reduce(start, stop, tag, blocks, array))

    def _reduce(self, start: int, stop: int, tag: int, blocks: bool, array: Array | None) -> Steps:
        own, parts = self.slice(start, stop), list(self._segments)
        if array is not None:
            mine, parts[self._node.rank] = parts[self._node.rank], array
            for i, j in ((start, own.start), (own.stop, stop)):
                mine[i:j] = array[i:j]
        yield self._meet(blocks)
        self._window.sync()
        self._add(parts, own.start, own.stop)
        yield self._meet(blocks)
        self._window.sync()
        if self._nodes is not None:
            if self._node.rank == 0:
                total, sums = self._total[start:stop], self._sums[start:stop]
                yield from self._runner.steps(self._nodes, total, tag, blocks, sums)
            yield self._meet(blocks)
            self._window.sync()
        if array is not None:
            array[...] = self._total[:stop]

    def free(self) -> None:
        """Gives the memory back; every rank calls it, and uses neither `mine` nor `total` again."""
        self._segments = []
        self._window.free()
        self._node.free()

    def _meet(self, blocks: bool) -> list[Request]:
        """What is left to wait for until all ranks have come, with what they have written."""
        self._window.sync()
        if not blocks:
            return [self._node.ibarrier()]
        self._node.barrier()
        return []

    def _add(self, parts: list[Array], lo: int, hi: int) -> None:
        """The sum over the node of a slice, always in the order of the ranks."""
        first, *rest = parts
        step = BLOCK // self._sums_dtype.itemsize
        for i in range(lo, hi, step):
            j = min(i + step, hi)
            out = self._sums[i:j]
            if rest:
                self._sum(first[i:j], rest[0][i:j], out)
            else:
                out[...] = first[i:j]
            for segment in rest[1:]:
                np.add(out, segment[i:j], out=out)
        if self._sums is not self._total and self._nodes is None:
            self._total[lo:hi] = self._sums[lo:hi]


def _sizes(n: int, dtype: np.dtype[Any], p: int) -> tuple[int, int, int]:
    """Bytes for what p ranks bring, for the sum, and for a finer sum where there is one."""
    one, finer = _pages(n * dtype.itemsize), wide(dtype)
    return p * one, one, _pages(n * finer.itemsize) * (finer is not dtype)


def _pages(nbytes: int) -> int:
    """Rounded up, so that no two ranks write to one page."""
    return -(-max(nbytes, 1) // PAGE) * PAGE
