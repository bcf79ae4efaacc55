"""Times collective calls: in turns, and with the same result on all ranks."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from nnmpi.comm.arguments import Array
from nnmpi.comm.transport.base import NoRoomError
from nnmpi.comm.transport.system import System

SECONDS = 0.004  # spent on one call


class TimedComm(Protocol):
    """The interface that objects need to time calls on them: some methods of a Comm."""

    size: int
    system: System

    def all_reduce(self, array: Array, algorithm: str = ...) -> None: ...
    def barrier(self) -> None: ...


def medians(comm: TimedComm, calls: Sequence[Callable[[], object]]) -> list[float]:
    """Returns the median seconds of collective calls, averaged over the ranks. The calls are timed
    in turns, so that a slow phase of the machine affects all of them."""
    first = [_agreed(comm, [_timed(comm, call)])[0] for call in calls]
    repeats = min(max(int(SECONDS * len(calls) / max(sum(first), 1e-9)), 5), 30)
    rows = [[_timed(comm, call) for call in calls] for _ in range(repeats)]
    return _agreed(comm, np.median(rows, axis=0).tolist())


def _timed(comm: TimedComm, call: Callable[[], object]) -> float:
    """Makes a collective call twice; returns the seconds of the second, with warm caches."""
    call()
    comm.barrier()  # otherwise the time would include waiting for a rank that comes late
    start = comm.system.clock()
    call()
    return comm.system.clock() - start


def _agreed(comm: TimedComm, seconds: Sequence[float]) -> list[float]:
    """Returns the mean over ranks of each number, so that all decide alike; collective."""
    total = np.array(seconds, float)
    comm.all_reduce(total, "ring")
    return [float(x) / comm.size for x in total]


def fits(call: Callable[[], object]) -> bool:
    """Makes a collective call; returns False if shared memory is lacking for it."""
    try:
        call()
    except NoRoomError:
        return False
    return True
