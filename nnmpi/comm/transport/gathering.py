"""What all ranks bring is gathered by messages that are polled.

rank 0   a . . .     a b . .     a b c d
rank 1   b . . .     b c . .     b c d a     from the next rank, the second next, the fourth, ...
rank 2   c . . .     c d . .     c d a b
rank 3   d . . .     d a . .     d a b c
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.transport.start_mpi import MPI


class MessageGather:
    """What all ranks bring, tested as a request is; with nothing to bring it is a barrier.

    Rank r receives from r + 1 what that brings, from r + 2 what that and the next bring, from r + 4
    what those four bring, ... Calls of the library for all ranks print lines where one is lost, and
    are for whole communicators.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        swap: Callable[..., list[MPI.Request]],
        own: NDArray[Any],
        take: Callable[[NDArray[Any]], object],
    ) -> None:
        self._rank, self._size, self._swap, self._take = rank, size, swap, take
        self._rows = np.zeros((size, *own.shape), own.dtype)  # the first one is this rank's
        self._rows[0] = own
        self._hop, self._requests = 0, list[MPI.Request]()
        self.Test()

    def Test(self) -> bool:  # noqa: N802 - as MPI calls it
        rank, size, rows = self._rank, self._size, self._rows
        while self._hop < size and all(request.Test() for request in self._requests):
            self._hop = hop = 2 * self._hop or 1
            if hop < size:
                parts = rows[:hop][: size - hop], rows[hop : 2 * hop]
                out, into = (part.reshape(-1).view(np.uint8) for part in parts)
                self._requests = self._swap(out, (rank - hop) % size, into, (rank + hop) % size)
            else:
                self._take(np.roll(rows, rank, 0))
        return self._hop >= size


def add_up(array: NDArray[Any], rows: NDArray[Any]) -> None:
    """The sum of the rows in the array, from the first to the last, so that all ranks agree."""
    array[...] = rows[0]
    for row in rows[1:]:
        np.add(array, row, out=array)
