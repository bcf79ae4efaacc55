"""The barrier of memory that ranks share: each rank counts in it how often it has come.

rank 0   3
rank 1   3
rank 2   2    has not come for the third time: ranks 0 and 1 wait
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnmpi.native.table import InOut, Out, kernel

Counts = NDArray[np.int64]
Numbers = NDArray[Any]

BLOCK = 1 << 19  # bytes added at a time: the partial sum stays in the second-level cache
LINE = 64  # bytes: the counts of two ranks are in different lines of the cache
LOOKS = 1000  # at the counts of others, before the MPI library may move its messages


@kernel
def sum_loop(out: Out, *parts: Numbers) -> None:
    """out = parts[0] + parts[1] + ..., from left to right, in the type of `out`."""
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
    looks: int,
    rank: int,
    sync: Callable[[], Any],
    others: tuple[Counts, ...],
    array: InOut | None = None,
    *parts: InOut,
) -> None:
    """Writes a count, and looks so many times whether all others are there: `here` tells.

    An array is copied to this rank's part before; when all are there, it is the sum of all parts.
    `sync` makes writes visible; the compiled function has stores and loads that do.
    """
    if array is not None:
        parts[rank][...] = array
    sync()
    own[0] = count
    for _ in range(looks):
        here[0] = all(other[0] >= count for other in others)
        if here[0]:
            break
        os.sched_yield()
    sync()
    if array is not None and here[0]:
        sum_loop(array, *parts)


class Gate:
    """A barrier that may be waited for, or tested: it is the request of its last `arrive`."""

    def __init__(
        self,
        counts: Sequence[Counts],
        rank: int,
        sync: Callable[[], Any],
        progress: Callable[[], Any],
    ) -> None:
        # `here` is this rank's alone: a write to a line of the cache that others look at takes long
        self._here, self._count, self._progress = np.zeros(1, np.int64), 0, progress
        others = (*counts[:rank], *counts[rank + 1 :])
        self._own, self._after = counts[rank], (rank, sync, others)

    def arrive(self) -> "Gate":
        """What this rank wrote is visible to ranks that have seen it come."""
        self._count += 1
        self.test()
        return self

    def barrier(self) -> None:
        """Comes, and returns when all ranks have."""
        self._count += 1
        self.wait()

    def exchange(self, array: Numbers, parts: Sequence[Numbers]) -> None:
        """Writes the array to this rank's part; when all ranks have, it is the sum of all parts."""
        self._count += 1
        meet_loop(self._own, self._here, self._count, LOOKS, *self._after, array, *parts)
        if not self._here[0]:
            self.wait(array, *parts)

    def test(self) -> bool:
        """Whether all ranks have come; what they wrote before is then visible."""
        meet_loop(self._own, self._here, self._count, 1, *self._after)
        return bool(self._here[0])

    def wait(self, *sums: Numbers) -> None:
        """Returns when all ranks have come."""
        meet_loop(self._own, self._here, self._count, LOOKS, *self._after, *sums)
        while not self._here[0]:
            self._progress()  # what this rank has sent may still be in the library's hands
            meet_loop(self._own, self._here, self._count, LOOKS, *self._after, *sums)
