"""Memory of a node, as users hold it: for sums (Shared), and for whatever they like (Common)."""

import operator
from typing import Any

import numpy as np

from nnmpi.comm.allreduce.interpreter import Array, Steps
from nnmpi.comm.allreduce.node_memory import Segments
from nnmpi.comm.arrays import check_dtype
from nnmpi.comm.debug.call_log import Call
from nnmpi.comm.debug.calls import Calls
from nnmpi.comm.progress.work import Work
from nnmpi.comm.transport.base import TAGS


class Shared:
    """Memory for sums: write `mine`, call `all_reduce`, read `total`.

    A sum is over all elements, or over those from `start` to `stop` - 1, the same on every rank.
    `mine` may be written again when `all_reduce` has returned. `total` is the same memory on all
    ranks of a node, and holds until this rank sums those elements again: read it, or write to it
    only where no other rank does.
    """

    def __init__(self, segments: Segments, n: int, calls: Calls) -> None:
        self.mine, self.total = segments.mine(n), segments.total(n)
        self._segments, self._n, self._calls = segments, n, calls

    def all_reduce(self, start: int = 0, stop: int | None = None) -> None:
        """Makes `total` the sum of what all ranks have in `mine`."""
        self._calls.finish(*self._steps(start, stop, starts=False))

    def start(self, start: int = 0, stop: int | None = None) -> Work:
        """Begins an all-reduce, whose elements have to be left alone until it is complete.

        Several may be under way together. They are summed in the order in which they were started.
        """
        return self._calls.work(*self._steps(start, stop, starts=True))

    def own(self, start: int = 0, stop: int | None = None) -> slice:
        """Which of these elements this rank adds up: the ranks of its node share them out."""
        return self._segments.slice(*self._range(start, stop))

    def free(self) -> None:
        """Gives the memory back. Every rank calls it, and uses `mine` and `total` no more."""
        self._calls.meet(self._calls.note("shared.free"))
        self._segments.free()

    def _steps(self, start: int, stop: int | None, starts: bool) -> tuple[Steps, Call]:
        lo, hi = self._range(start, stop)
        calls, dtype = self._calls, self._segments.dtype
        first = -1 if hi - lo == self._n else lo
        call = calls.note("shared.all_reduce", "", hi - lo, dtype, first, check=not starts)
        blocks = not starts and calls.progress.idle
        steps = self._segments.reduce(lo, hi, call.number % TAGS, blocks)
        return calls.checked(steps, call, not starts), call

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        n = self._n
        lo, hi = operator.index(start), n if stop is None else operator.index(stop)
        if not 0 <= lo <= hi <= n:
            raise ValueError(f"elements {lo} to {hi} of {n}: use 0 <= start <= stop <= {n}")
        return lo, hi


class Common:
    """One memory for all ranks of a node, held by its first: `array`, zero at first.

    Ranks that write have to `meet` before others read, and before others write the same elements.
    """

    def __init__(self, calls: Calls, n: int, dtype: np.dtype[Any]) -> None:
        first, nbytes = calls.wire.rank == 0, n * dtype.itemsize
        self._calls, self._window = calls, calls.wire.window(nbytes if first else 0)
        memory = self._window.segments[0][:nbytes]
        if first:
            memory[...] = 0  # takes the memory now, while there is room
        self.array: Array = memory.view(dtype)

    def sync(self) -> None:
        """Between writing and a message that says so, and between that message and reading."""
        self._window.sync()

    def meet(self) -> None:
        """Returns when all ranks of the node have called it; what they wrote before is seen."""
        self._window.sync()
        self._calls.meet(self._calls.note("common.meet"))
        self._window.sync()

    def free(self) -> None:
        """Gives the memory back. Every rank of the node calls it, and uses `array` no more."""
        self._calls.meet(self._calls.note("common.free"))
        self._window.free()
        self._calls.free()


def room(n: int, dtype: Any, call: str) -> tuple[int, np.dtype[Any]]:
    """A length and a type for which there can be memory."""
    n, dtype = operator.index(n), np.dtype(dtype)
    if n < 0:
        raise ValueError(f"there is no room for {n} numbers: use 0 or more")
    check_dtype(dtype, call)
    return n, dtype
