"""The ways to an all-reduce: by plan, by the library, through shared memory."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.comm.allreduce.interpreter import Array, Runner, Steps, wide
from nnmpi.comm.allreduce.node_memory import Levels, Segments
from nnmpi.comm.transport.base import Request, Transport

Way: TypeAlias = Callable[[Array, int, bool, bool], Steps]  # (flat buffer, tag, starts, blocks)

NAMES = (*ALGORITHMS, "mpi", "shared")
TOGETHER = ("hierarchical", "shared")  # their first calls make memory, all ranks at the same time


class Ways:
    """All-reduces of one communicator."""

    def __init__(self, wire: Transport, runner: Runner) -> None:
        self._wire, self._runner = wire, runner
        self._levels: Levels | None = None
        self._windows: dict[tuple[int, np.dtype[Any]], Segments] = {}
        self._here: list[Request] = []  # where all ranks met before the library's last sum
        self._special: dict[str, Way] = {
            "mpi": self._library,
            "shared": self._through_window,
            "hierarchical": self._two_levels,
        }

    def steps(self, name: str, flat: Array, tag: int, starts: bool, blocks: bool) -> Steps:
        """Sums by the way of that name.

        `starts`: the sum is only begun, on all ranks alike. `blocks`: this rank has nothing else
        under way, so it may make calls that return only when all is done.
        """
        special = self._special.get(name)
        if special is not None:
            return special(flat, tag, starts, blocks)
        return self._runner.steps(ALGORITHMS[name], flat, tag, blocks)

    def lacks_memory(self, name: str, flat: Array) -> bool:
        """Whether one of TOGETHER needs `make_memory` first; if so, it does on all ranks."""
        if self._levels is None:
            return True
        windows = name == "shared" or self._levels.nodes is not None
        return windows and _window_key(flat) not in self._windows

    def make_memory(self, name: str, flat: Array) -> None:
        """What the way of that name needs for such a buffer; all ranks make it at the same time."""
        if name == "shared" or self.levels().nodes is not None:
            key = _window_key(flat)
            self._windows[key] = self.segments(*key)

    def levels(self) -> Levels:
        """Which ranks share memory; every rank asks at the same time, the first time."""
        if self._levels is None:
            self._levels = Levels.of(self._wire)
        return self._levels

    def free(self) -> None:
        """Gives everything back; every rank calls it."""
        self._wire.wait(self._here)
        for segments in self._windows.values():
            segments.free()
        self._windows.clear()
        if self._levels is not None:
            self._levels.free()
            self._levels = None

    def segments(self, n: int, dtype: Any) -> Segments:
        """Shared memory for sums of n numbers; every rank asks for it at the same time."""
        self.levels().check_room_for_sums(n, dtype)
        return Segments(self.levels(), self._runner, n, dtype)

    def node_for(self, nbytes: int) -> Transport:
        """A transport of the node's ranks, for a memory of so many bytes; all ask for it."""
        self.levels().check_room(nbytes, "a memory for each node", "go without shared memory")
        return self.levels().node.duplicate()

    def _library(self, flat: Array, tag: int, starts: bool, blocks: bool) -> Steps:
        """By MPI_Allreduce, in which a rank moves nothing else.

        So a rank with something else under way first waits, pushing it forward, until all ranks are
        there. Those with nothing say that they are there, and need not wait for anybody.
        """
        dtype = wide(flat.dtype)
        sums = flat if dtype is flat.dtype else flat.astype(dtype)
        if starts:
            yield self._wire.start_all_reduce(sums)
        else:
            before, self._here = self._here, [self._wire.ibarrier()]
            yield before if blocks else before + self._here
            self._wire.all_reduce(sums)
        if sums is not flat:
            flat[...] = sums

    def _two_levels(self, flat: Array, tag: int, starts: bool, blocks: bool) -> Steps:
        """Through shared memory in each node; where there is but one, pairs of ranks play nodes."""
        if self.levels().nodes is not None:
            return self._through_window(flat, tag, starts, blocks)
        return self._runner.steps(ALGORITHMS["hierarchical"], flat, tag, blocks)

    def _through_window(self, flat: Array, tag: int, starts: bool, blocks: bool) -> Steps:
        return self._windows[_window_key(flat)].reduce(0, flat.size, tag, blocks, flat)


def _window_key(flat: Array) -> tuple[int, np.dtype[Any]]:
    """Windows come in powers of two, so that a few serve all lengths."""
    return 1 << max(flat.size - 1, 1).bit_length(), flat.dtype
