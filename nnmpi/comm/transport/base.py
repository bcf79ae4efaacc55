"""The protocol below a communicator: bytes are moved between ranks, and counted."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
TAGS = 32768  # every MPI has at least so many

Request: TypeAlias = Any  # what a transport hands out, for its own `wait` and `test`


class AbortedError(RuntimeError):
    """Another rank failed, so this one cannot go on."""


class OtherRankError(RuntimeError):
    """Another rank failed; the message is that rank's (see Comm.agree)."""


class RankLost(RuntimeError):
    """Another rank is gone for ever, and this one can go on without it: see Comm.shrink.

    Whoever raises it has revoked all Comms of this rank, so that all other ranks hear of it.
    """


class MessageLengthError(RuntimeError):
    """A message has more or fewer bytes than the array that it is received into."""

    def __init__(self, source: int, expected: int, got: str) -> None:
        super().__init__(
            f"a message from rank {source}: expected {expected:,} bytes, got {got}; "
            "receive into an array of the length and the type that is sent"
        )


class NoRoomError(MemoryError):
    """A node has too little shared memory; raised on all ranks alike."""


class Ledger:
    """Messages and bytes sent and received, by peer, without those inside the MPI library.

    They are counted where they are sent, and not taken from the log of a step, which says what was
    asked for: so each shows where the other is wrong.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Sets all counts to 0."""
        self.sent_messages, self.sent_bytes = [0] * self.size, [0] * self.size
        self.received_messages, self.received_bytes = [0] * self.size, [0] * self.size


class TransportFamily:
    """The transports that one rank has made since it started, or since it shrank.

    All of them are revoked together, at the first RankLost. This one is that of a job which ends
    with its first lost rank.
    """

    abandoned = False
    gone: Sequence[int] = ()  # the ranks of the job that were lost before

    def abandon(self) -> None:
        """Revokes all, on all ranks: their operations raise RankLost; never waits.

        It may be called again.
        """
        self.abandoned = True

    def lost(self, reason: str) -> RankLost:
        """The error to raise where a rank is lost; all transports are revoked by then."""
        self.abandon()
        return RankLost(f"{reason}: every rank that is left has to call Comm.shrink()")

    def confirm(self) -> None:
        """Returns on all ranks of the job, or raises RankLost on all that are left.

        The latter if one of them is lost, or calls `shrink` instead. To shrink is next then.
        """

    def shrink(self) -> "Transport":
        """The ranks of the job that are left, in their old order: the first of a new family.

        All of them call it when they have abandoned this one. Raises RankLost if another is lost
        meanwhile, unless the new one is without it.
        """
        raise RuntimeError(
            "this job does not outlive its ranks: start it with mpirun --with-ft ulfm, of Open MPI "
            "5 (python -m nnmpi.doctor tells whether it can)"
        )


class Segments(NamedTuple):
    """The memory of all ranks of a node, as buffers."""

    buffers: Sequence[Any]
    sync: Callable[[], None]  # makes writes visible
    free: Callable[[], None]  # collective


class ShortSum(NamedTuple):
    """A sum through shared memory in one call."""

    call: Callable[[NDArray[Any]], bool]  # begins it; whether it is complete: others came soon
    wait: Callable[[NDArray[Any]], None]  # completes it


class SharedWindow(NamedTuple):
    """Memory that all ranks of a node can write: one segment a rank."""

    segments: list[Bytes]
    barrier: Callable[[], None]  # of the node; what all ranks wrote before is visible after it
    ibarrier: Callable[[], Any]  # the same as what `wait` and `test` of its transport take
    short_sum: Callable[..., ShortSum | None]  # of `Barrier`; None where ranks are threads
    free: Callable[[], None]  # collective; where the transport was abandoned, it does nothing
    is_viewed: Callable[[], bool]  # forgets the segments; whether anybody else still has arrays


class Receiver(Protocol):
    """Receives messages; that of a transport raises MessageLengthError where one does not fit."""

    def irecv(self, data: Bytes, source: int, tag: int) -> Request: ...
    def wait(self, requests: Sequence[Request]) -> object: ...
    def test(self, requests: Sequence[Request]) -> bool: ...


class Transport(Receiver, Protocol):
    """Moves bytes between `size` ranks, of which this is `rank`.

    Messages between two ranks with one tag arrive in the order in which they were sent. No message
    may be longer than `message_limit` bytes (see `pieces`).

    Where `fault_tolerant`, an operation that needs a lost rank raises `family.lost(...)`, and so
    does any that is not complete yet on a transport that some rank has revoked. What is complete
    stays so. Requests and their buffers are kept until they are complete: MPI may still write to
    what was abandoned.
    """

    rank: int
    size: int
    message_limit: int
    any_thread: bool  # whether several threads may use it (MPI_THREAD_MULTIPLE)
    ledger: Ledger
    members: Sequence[int]  # each rank's number in the whole job, as it was started
    fault_tolerant: bool  # whether it raises RankLost; without, a death ends the job

    @property
    def family(self) -> TransportFamily: ...

    def isend(self, data: Bytes, to: int, tag: int) -> Request: ...
    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        """Sends, receives, or does both at once; returns when they are complete."""

    def receiver(self) -> Receiver:
        """For receives whose lengths the library does not compare; its requests are its own."""

    def ibarrier(self) -> Request:
        """Complete when all ranks have called it."""

    def barrier(self) -> None:
        """`ibarrier`, waited for: one rank may call this one, and another `ibarrier`."""

    def all_reduce(self, array: NDArray[Any]) -> None:
        """The library's own sum, in place."""

    def start_all_reduce(self, array: NDArray[Any]) -> list[Request]: ...

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        """Another transport of these ranks, whose messages cannot match those of this one.

        They are counted in the same ledger, unless another is given.
        """

    def split(self, color: int | None, key: int) -> Self | None:
        """The ranks with one color, in the order of their keys; None where color is None."""

    def split_node(self) -> Self:
        """The ranks that share memory with this one."""

    def free(self) -> None:
        """Frees a duplicate or a split; collective. Does nothing where it was abandoned."""

    def free_memory(self) -> int:
        """The bytes of shared memory that are free on this node."""

    def window(self, nbytes: int) -> SharedWindow:
        """Allocates a segment of so many bytes on this rank; collective, within one node."""

    def abort(self, message: str, status: int = 1) -> None:
        """Ends all ranks, with a message; processes get the exit status."""


def pieces(data: NDArray[Any], most: int) -> list[NDArray[Any]]:
    """The data in pieces of at most so many elements; one empty piece if there are none."""
    return [data[i : i + most] for i in range(0, max(data.size, 1), most)]


def add_up(array: NDArray[Any], rows: Sequence[NDArray[Any]] | NDArray[Any]) -> None:
    """The sum of the rows in the array, from the first to the last, so that all ranks agree."""
    array[...] = rows[0]
    for row in rows[1:]:
        np.add(array, row, out=array)
