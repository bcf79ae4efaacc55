"""Bytes that ranks send, collectives noted on paper, and arrays that an object holds."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from classroom.messages import Messages
from nnmpi.comm import Comm
from nnmpi.comm.arguments import Array


def sent(comm: Comm, call: Callable[[], Any]) -> tuple[Any, int]:
    """The value of a call, and the bytes that all ranks together send during it; collective."""
    start = sum(comm.ledger.sent_bytes)
    value = call()
    count = np.array([float(sum(comm.ledger.sent_bytes) - start)])
    comm.all_reduce(count, "ring")
    return value, int(count[0])


class PaperSum:
    """A sum that was started on paper."""

    def __init__(self, waited: list[int], number: int) -> None:
        self._waited, self._number = waited, number

    def wait(self) -> None:
        """Notes that somebody waits for the sum."""
        self._waited.append(self._number)


class PaperSums:
    """The all-reduces of a communicator that sends nothing: a rank alone cannot hang.

    started    the arrays, in order
    waited     the numbers of those that were waited for
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.started: list[Array] = []
        self.waited: list[int] = []

    def start(self, array: Array) -> PaperSum:
        """Notes an all-reduce that goes on in the background."""
        self.started.append(array)
        return PaperSum(self.waited, len(self.started) - 1)

    def all_reduce(self, array: Array) -> None:
        """Notes an all-reduce and the wait for it."""
        self.start(array).wait()


def arrays_in(value: Any, seen: set[int]) -> Iterator[Array]:
    """The arrays with memory of their own that an object refers to, but for those `seen`, by id."""
    if id(value) in seen or isinstance(value, type | Messages):
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, np.ndarray):
        inside = (value.base,)
        if value.base is None:
            yield value
    elif isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple | set):
        inside = value
    elif hasattr(value, "__dict__"):
        inside = vars(value).values()
    for v in inside:
        yield from arrays_in(v, seen)
