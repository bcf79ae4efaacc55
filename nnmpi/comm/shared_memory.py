"""Shared memory of the ranks of a node: buffers for sums, and arrays for any other use."""

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
from nnmpi.comm.transport.base import Request, SharedWindow


class SharedBuffer:
    """Shared memory for sums without copies: write `mine`, call `all_reduce`, read `total`.

    A sum covers all elements, or elements start..stop-1, the same on every rank. `mine` may be
    written again once `all_reduce` has returned. `total` is one array for all ranks of a node, and
    is valid until this rank sums the same elements again: read it, or write to elements that no
    other rank uses.
    """

    def __init__(self, reduction: SharedReduction, n: int, calls: CallRunner) -> None:
        self.mine, self.total = reduction.mine, reduction.total
        self._reduction, self._n, self._calls = reduction, n, calls

    def all_reduce(self, start: int = 0, stop: int | None = None) -> None:
        """Makes elements start..stop-1 of `total` the sum over ranks of their `mine`."""
        self._calls.finish(*self._steps(start, stop, starts=False))

    def start(self, start: int = 0, stop: int | None = None) -> Work:
        """Starts an all-reduce and returns its Work; do not touch the elements until it is
        complete. Several may be pending, and are summed in the order in which they were started."""
        return self._calls.start(*self._steps(start, stop, starts=True))

    def own(self, start: int = 0, stop: int | None = None, r: int | None = None) -> slice:
        """The slice of elements start..stop-1 that this rank, or rank r of the node, adds up; those
        of all ranks of the node partition the range."""
        return self._reduction.slice(*self._range(start, stop), r)

    def free(self, check: bool = True) -> None:
        """Frees the memory; collective.

        Raises BufferError on all ranks if any rank still has arrays that view `mine` or `total`:
        these stay valid, and the memory is not freed. Without `check` they become invalid, and
        using one ends the process.
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
        return self._reduction.reduce(lo, hi, calls.tag(call), blocks), call

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        n = self._n
        lo, hi = operator.index(start), n if stop is None else operator.index(stop)
        if not 0 <= lo <= hi <= n:
            raise ValueError(f"elements {lo} to {hi} of {n}: use 0 <= start <= stop <= {n}")
        return lo, hi


class NodeMemory:
    """An array of zeros that all ranks of a node share, in the memory of the node's first rank.

    After a rank has written to it, call `barrier` before others read or write the same elements.
    """

    def __init__(self, calls: CallRunner, n: int, dtype: np.dtype[Any]) -> None:
        first, nbytes = calls.transport.rank == 0, n * dtype.itemsize
        self._calls, self._window = calls, calls.transport.window(nbytes if first else 0)
        memory = self._window.segments[0][:nbytes]
        if first:
            memory[...] = 0  # MPI promises no zeros; before Linux 5.14 this allocates the pages
        self.array: Array = memory.view(dtype)

    def barrier(self) -> None:
        """Returns when all ranks of the node have called it; earlier writes are visible."""
        arrive = self._window.ibarrier  # raises here, before the call is logged, if it was freed
        self._calls.finish(_meet(arrive), self._calls.log("node_memory.barrier"))

    def free(self, check: bool = True) -> None:
        """Frees the memory; collective within the node. `check` is that of `SharedBuffer.free`."""
        memory, label = self._window, f"the memory {self._calls.comm}"
        freed: Any = FreedObject(label)
        self._window = self.array = freed
        _free(memory, self._calls, "node_memory.free", label, check)
        self._calls.free()


def _meet(arrive: Callable[[int], Request]) -> Steps:
    yield arrive(0)  # no other call arrives here


def _free(
    memory: SharedReduction | SharedWindow, calls: CallRunner, name: str, label: str, check: bool
) -> None:
    """Frees shared memory of a Comm; with `check`, raises BufferError on all ranks, and frees
    nothing, if arrays still view it. `name` is for the log, `label` for the message."""
    is_viewed, free = memory.is_viewed, memory.free  # raises if freed before
    if calls.transport.family.abandoned:
        return  # the memory stays until the job ends: other ranks may still use it
    with calls.collective(calls.log(name)):
        viewed = np.array([check and is_viewed()], np.int64)
        calls.transport.all_reduce(viewed)
        if viewed[0]:
            raise BufferError(
                f"{label} is not freed: on {viewed[0]} of {calls.transport.size} ranks arrays "
                "still view it, so it stays until the job ends; delete or copy them before free()"
            )
        free()
