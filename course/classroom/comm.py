"""What a student's code holds of objects of the grader: a Comm, requests, stages, functions.

Each method asks the grader, which does the work and counts it. So nothing that the student's code
changes in its own process changes what is counted.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Asked = Callable[..., Any]
"""Calls a method of the grader's object: its name, then its arguments."""


class Held:
    """An object of the grader, with its facts as attributes."""

    def __init__(self, ask: Asked, number: int, facts: dict[str, Any]) -> None:
        self._ask, self._number = ask, number
        for name, fact in facts.items():
            setattr(self, name, fact)


class Function(Held):
    """A function of the grader."""

    def __call__(self, *arguments: Any) -> Any:
        return self._ask("__call__", *arguments)


class Request(Held):
    """A message in progress; `wait` returns when the array may be used again."""

    _array: Array
    _sent: bytes | None = None

    def wait(self) -> None:
        """Returns when the message is complete."""
        arrived = self._ask("wait")
        if self._sent is None:
            self._array[...] = arrived
        elif self._array.tobytes() != self._sent:
            raise ValueError("the array of a send has changed before the send was complete")


class Messages(Held):
    """Rank, size, messages and a barrier: no collectives, so that students write them.

    A blocking `send` returns when the message is received.
    """

    rank: int
    size: int

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._ask("barrier")

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Sends an array; returns when rank `to` has received it."""
        self._ask("send", array, to, tag)

    def recv(self, array: Array, source: int, tag: int = 0) -> None:
        """Receives into an array, which has the length and type of what `source` sends."""
        array[...] = self._ask("recv", array, source, tag)

    def isend(self, array: Array, to: int, tag: int = 0) -> Request:
        """Starts a send; do not change the array before its request is complete."""
        request: Request = self._ask("isend", array, to, tag)
        request._array, request._sent = array, array.tobytes()
        return request

    def irecv(self, array: Array, source: int, tag: int = 0) -> Request:
        """Starts a receive; do not use the array before its request is complete."""
        request: Request = self._ask("irecv", array, source, tag)
        request._array = array
        return request


class Sum(Held):
    """An all-reduce in progress; `wait` returns when the array has the sum."""

    _array: Array

    def wait(self) -> None:
        """Returns when the array has the sum of all ranks."""
        self._array[...] = self._ask("wait")


class Sums(Held):
    """Rank, size and all-reduces in place."""

    rank: int
    size: int

    def all_reduce(self, array: Array) -> None:
        """Replaces the array on every rank by its sum over the ranks."""
        array[...] = self._ask("all_reduce", array)

    def start(self, array: Array) -> Sum:
        """Starts an all-reduce; do not use the array before the `wait` of what this returns."""
        work: Sum = self._ask("start", array)
        work._array = array
        return work


class Collectives(Messages, Sums):
    """Messages and collectives in place."""

    def chunk(self, n: int) -> slice:
        """This rank's slice of n elements, as in `reduce_scatter` and `all_gather`."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def reduce_scatter(self, array: Array) -> Array:
        """Returns this rank's `chunk` of the sum, a view of the array; the rest is overwritten."""
        array[...] = self._ask("reduce_scatter", array)
        return array.reshape(-1)[self.chunk(array.size)]

    def all_gather(self, array: Array) -> None:
        """Fills the array with the chunks of all ranks; each rank brings its own `chunk`."""
        array[...] = self._ask("all_gather", array)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replaces the array on every rank by the array of `root`."""
        array[...] = self._ask("broadcast", array, root)


class Stage(Held):
    """A stage of a pipeline."""

    def forward(self, x: Array) -> Any:
        """The output for an input."""
        return self._ask("forward", x)

    def backward(self, x: Array, y: Array, gy: Array) -> Any:
        """The gradient of the input, given that of the output; adds to that of the weights."""
        return self._ask("backward", x, y, gy)


def ring_all_reduce(comm: Messages, x: Array) -> None:
    """A ring that sends and adds what one has to, in the plainest way."""
    p, r, n = comm.size, comm.rank, len(x)
    for t in range(2 * (p - 1)):
        a, b = (r - t) % p, (r - t - 1) % p
        into = x[n * b // p : n * (b + 1) // p]
        arrives = np.empty_like(into)
        sent = comm.isend(x[n * a // p : n * (a + 1) // p], (r + 1) % p)
        comm.recv(arrives, (r - 1) % p)
        sent.wait()
        into[:] = into + arrives if t < p - 1 else arrives


HELD = {of.__name__: of for of in (Function, Messages, Collectives, Request, Sum, Sums, Stage)}
"""The classes by the names that the grader sends."""
