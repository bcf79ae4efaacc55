"""The Comm that adapters get: messages alone, counted, and timed on a model of the network."""

from functools import partial
from typing import Any, ClassVar

import numpy as np

from classroom.channel import Stays
from nnmpi.comm import Comm, Work
from nnmpi.comm.arguments import Array


class Request(Stays):
    """A message in progress; `wait` returns when the array may be used again."""

    methods: ClassVar[tuple[str, ...]] = ("wait",)

    def __init__(self, array: Array, ended: Any, works: tuple[Work, ...]) -> None:
        self._array, self._ended, self._works = array, ended, works

    def wait(self) -> Array:
        """Returns the array when the message is complete."""
        for work in self._works:
            work.wait()
        self._ended(self)
        return self._array


class Messages(Stays):
    """Rank, size, messages and a barrier: no collectives, so that students write them.

    A blocking `send` returns when the message is received. Graders read the rest:

    sent_messages, sent_bytes    what this rank has sent
    clock                        seconds until this rank is done, where a message of m bytes takes
                                 alpha + m beta, and a rank sends one and receives one at a time
    unfinished                   the requests that nobody has waited for, as text

    With alpha = 1 and beta = 0, the clock counts rounds. Each message brings the time at which its
    sender has sent it, in another message with an odd tag.
    """

    methods: ClassVar[tuple[str, ...]] = ("barrier", "send", "recv", "isend", "irecv")
    facts: ClassVar[tuple[str, ...]] = ("rank", "size")

    def __init__(self, comm: Comm, alpha: float = 1.0, beta: float = 0.0) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.barrier = comm.barrier
        self._isend, self._irecv = comm.isend, comm.irecv
        self._alpha, self._beta = alpha, beta
        self.sent_messages = self.sent_bytes = 0
        self.clock = self._sending = self._receiving = 0.0
        self._open: dict[Request, str] = {}

    @property
    def unfinished(self) -> list[str]:
        """The requests that nobody has waited for: "the send of 4 float64 to rank 1"."""
        return [*self._open.values()]

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Sends an array; returns when rank `to` has received it."""
        self.isend(array, to, tag).wait()

    def recv(self, array: Array, source: int, tag: int = 0) -> Array:
        """Receives into an array, which has the length and type of what `source` sends."""
        return self.irecv(array, source, tag).wait()

    def isend(self, array: Array, to: int, tag: int = 0) -> Request:
        """Starts a send; do not change the array before its request is complete."""
        work = self._isend(array, to, 2 * tag)
        self._sending = max(self.clock, self._sending) + self._cost(array)
        time = np.array([self._sending])
        self.sent_messages += 1
        self.sent_bytes += array.nbytes
        text = f"the send of {array.size:,} {array.dtype} to rank {to}"
        works = work, self._isend(time, to, 2 * tag + 1)
        return self._opened(Request(array, partial(self._sent, time), works), text)

    def irecv(self, array: Array, source: int, tag: int = 0) -> Request:
        """Starts a receive; do not use the array before its request is complete."""
        time = np.zeros(1)
        works = self._irecv(array, source, 2 * tag), self._irecv(time, source, 2 * tag + 1)
        text = f"the receive of {array.size:,} {array.dtype} from rank {source}"
        ended = partial(self._received, time, self._cost(array))
        return self._opened(Request(array, ended, works), text)

    def _cost(self, array: Array) -> float:
        return self._alpha + array.nbytes * self._beta

    def _opened(self, request: Request, text: str) -> Request:
        self._open[request] = text
        return request

    def _sent(self, time: Array, request: Request) -> None:
        if self._open.pop(request, None):
            self.clock = max(self.clock, float(time[0]))

    def _received(self, time: Array, cost: float, request: Request) -> None:
        if self._open.pop(request, None):
            self._receiving = max(float(time[0]), self._receiving + cost)
            self.clock = max(self.clock, self._receiving)
