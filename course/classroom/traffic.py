"""Bytes that ranks send, and collectives noted on paper."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from classroom.channel import Stays
from nnmpi.comm import Comm
from nnmpi.comm.arguments import Array


def sent(comm: Comm, call: Callable[[], Any]) -> tuple[Any, int]:
    """The value of a call, and the bytes that all ranks together send during it; collective."""
    start = sum(comm.ledger.sent_bytes)
    value = call()
    count = np.array([float(sum(comm.ledger.sent_bytes) - start)])
    comm.all_reduce(count, "ring")
    return value, int(count[0])


class Sum(Stays):
    """A sum that was started on paper."""

    methods: ClassVar[tuple[str, ...]] = ("wait",)

    def __init__(self, waited: list[int], number: int, array: Array) -> None:
        self._waited, self._number, self._array = waited, number, array

    def wait(self) -> Array:
        """Notes that somebody waits for the sum."""
        self._waited.append(self._number)
        return self._array


class Sums(Stays):
    """The all-reduces of a communicator that sends nothing: a rank alone cannot hang.

    started    the arrays, in order
    waited     the numbers of those that were waited for
    """

    methods: ClassVar[tuple[str, ...]] = ("start", "all_reduce")
    facts: ClassVar[tuple[str, ...]] = ("rank", "size")

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.started: list[Array] = []
        self.waited: list[int] = []

    def start(self, array: Array) -> Sum:
        """Notes an all-reduce that goes on in the background."""
        self.started.append(array)
        return Sum(self.waited, len(self.started) - 1, array)

    def all_reduce(self, array: Array) -> Array:
        """Notes an all-reduce and the wait for it."""
        return self.start(array).wait()
