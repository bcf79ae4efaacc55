"""What a communicator stands on: a transport that moves bytes between ranks, and counts them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
TAGS = 32768  # every MPI has at least so many

Request: TypeAlias = Any  # whatever the transport hands out; only its `wait` and `test` look inside


class AbortedError(RuntimeError):
    """Another rank failed, so this one cannot go on."""


class OtherRankError(RuntimeError):
    """Another rank failed, and told why: see Comm.agree."""


class NoRoomError(MemoryError):
    """There is no room for so much shared memory on some node: raised on all ranks alike."""


class Ledger:
    """Messages and bytes sent and received, by peer; what the library moves itself is not seen."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Counts from 0 again."""
        self.sent_messages, self.sent_bytes = [0] * self.size, [0] * self.size
        self.received_messages, self.received_bytes = [0] * self.size, [0] * self.size


class Window(NamedTuple):
    """Memory that all ranks of a node can write: one segment a rank."""

    segments: list[Bytes]
    sync: Callable[[], None]  # makes writes seen, on each side of a barrier
    free: Callable[[], None]  # all ranks call it


class Transport(Protocol):
    """Moves bytes between `size` ranks, of which this is `rank`.

    Messages between two ranks with one tag arrive in the order in which they were sent. No message
    is longer than `piece` bytes; whoever has more to send cuts it.
    """

    rank: int
    size: int
    piece: int
    any_thread: bool  # whether another thread may use it too
    ledger: Ledger
    members: Sequence[int]  # the ranks as they are numbered in the whole job

    def isend(self, data: Bytes, to: int, tag: int) -> Request: ...
    def irecv(self, data: Bytes, source: int, tag: int) -> Request: ...
    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        """Sends, receives, or both at once, and returns when that is done."""

    def wait(self, requests: Sequence[Request]) -> object: ...
    def test(self, requests: Sequence[Request]) -> bool: ...

    def ibarrier(self) -> Request:
        """Complete when all ranks have come."""

    def barrier(self) -> None:
        """The same, waited for. It meets `ibarrier`: whether a rank may block is its own matter."""

    def all_reduce(self, array: NDArray[Any]) -> None:
        """The library's own sum, in place."""

    def start_all_reduce(self, array: NDArray[Any]) -> list[Request]: ...

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        """The same ranks, whose messages do not meet those of this transport.

        They are counted together, unless another ledger is given.
        """

    def split(self, color: int | None, key: int) -> Self | None:
        """The ranks with one color, in the order of their keys; None where color is None."""

    def split_node(self) -> Self:
        """The ranks that share memory with this one."""

    def free(self) -> None:
        """Gives back what a duplicate or a part took; every rank of it calls it, once."""

    def room(self) -> int:
        """How many bytes of shared memory are free on this node."""

    def window(self, nbytes: int) -> Window:
        """A segment of so many bytes on this rank, and the others' segments; needs one node."""

    def abort(self, message: str) -> None:
        """Ends all ranks, saying why."""
