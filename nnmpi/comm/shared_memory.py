"""Memory that the ranks of a node share: for sums, and for any other use."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.comm.allreduce.node_memory import SharedReduction
from nnmpi.comm.arguments import Array
from nnmpi.comm.call_log import CallRecord
from nnmpi.comm.calls import CallRunner, FreedObject
from nnmpi.comm.progress import Work
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import TAGS, Request, SharedWindow


class SharedBuffer:
    """Memory for sums: write `mine`, call `all_reduce`, read `total`.

    A sum is over all elements, or over those from `start` to `stop` - 1, the same on every rank.
    `mine` may be written again when `all_reduce` has returned. `total` is the same memory on all
    ranks of a node, and is valid until this rank sums those elements again: read it, or write to it
    only where no other rank does.
    """

    def __init__(self, reduction: SharedReduction, n: int, calls: CallRunner) -> None:
        self.mine, self.total = reduction.mine, reduction.total
        self._reduction, self._n, self._calls = reduction, n, calls

    def all_reduce(self, start: int = 0, stop: int | None = None) -> None:
        """Makes `total` the sum of what all ranks have in `mine`."""
        self._calls.finish(*self._steps(start, stop, starts=False))

    def start(self, start: int = 0, stop: int | None = None) -> Work:
        """Starts an all-reduce. Its elements must not be touched until the work is complete.

        Several may be under way. They are summed in the order in which they were started.
        """
        return self._calls.start(*self._steps(start, stop, starts=True))

    def own(self, start: int = 0, stop: int | None = None, r: int | None = None) -> slice:
        """Which of these elements this rank, or rank r of its node, adds up: they divide them."""
        return self._reduction.slice(*self._range(start, stop), r)

    def free(self, check: bool = True) -> None:
        """Frees the memory; collective.

        Raises BufferError on all ranks where arrays of one of them still view `mine` or `total`:
        these stay valid, and the memory is not freed. Without `check` they become invalid, and to
        use one ends the process.
        """
        memory, label = self._reduction, f"a shared buffer of Comm {self._calls.comm}"
        freed: Any = FreedObject(label)
        self._reduction = self.mine = self.total = freed
        _free(memory, self._calls, "shared.free", label, check)

    def _steps(self, start: int, stop: int | None, starts: bool) -> tuple[Steps, CallRecord]:
        lo, hi = self._range(start, stop)
        calls, dtype = self._calls, self._reduction.dtype
        first = -1 if hi - lo == self._n else lo
        call = calls.log("shared.all_reduce", "", hi - lo, dtype, first)
        blocks = not starts and not calls.progress.works
        return self._reduction.reduce(lo, hi, call[1] % TAGS, blocks), call

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        n = self._n
        lo, hi = operator.index(start), n if stop is None else operator.index(stop)
        if not 0 <= lo <= hi <= n:
            raise ValueError(f"elements {lo} to {hi} of {n}: use 0 <= start <= stop <= {n}")
        return lo, hi


class NodeMemory:
    """One array for all ranks of a node, zero at first, in the memory of the node's first rank.

    After a rank has written, call `barrier` before others read, or write the same elements.
    """

    def __init__(self, calls: CallRunner, n: int, dtype: np.dtype[Any]) -> None:
        first, nbytes = calls.transport.rank == 0, n * dtype.itemsize
        self._calls, self._window = calls, calls.transport.window(nbytes if first else 0)
        memory = self._window.segments[0][:nbytes]
        if first:
            memory[...] = 0  # takes the memory now, while there is room
        self.array: Array = memory.view(dtype)

    def barrier(self) -> None:
        """Returns when all ranks of the node have called it; what they wrote before is visible."""
        arrive = self._window.ibarrier  # raises if the memory was freed
        self._calls.finish(_meet(arrive), self._calls.log("node_memory.barrier"))

    def free(self, check: bool = True) -> None:
        """Frees the memory; collective within the node. Arrays that view it are as in a buffer."""
        memory, label = self._window, f"the memory {self._calls.comm}"
        freed: Any = FreedObject(label)
        self._window = self.array = freed
        _free(memory, self._calls, "node_memory.free", label, check)
        self._calls.free()


def _meet(arrive: Callable[[], Request]) -> Steps:
    yield arrive()


def _free(
    memory: SharedReduction | SharedWindow, calls: CallRunner, name: str, label: str, check: bool
) -> None:
    """Frees the memory; with `check` raises BufferError, on all ranks, if arrays of one view it."""
    is_viewed, free = memory.is_viewed, memory.free  # raises if it was freed before
    if calls.transport.family.abandoned:
        return  # the memory stays until the job ends: others may be in it
    with calls.collective(calls.log(name)):
        viewed = np.array([check and is_viewed()], np.int64)
        calls.transport.all_reduce(viewed)
        if viewed[0]:
            raise BufferError(
                f"{label} is not freed: on {viewed[0]} of {calls.transport.size} ranks arrays "
                "still view it, and it stays until the job ends; delete them before free(), or "
                "copy them"
            )
        free()
