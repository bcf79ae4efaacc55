"""The transport protocol below a communicator: moves bytes between ranks, and counts them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.transport.system import OperatingSystem, System

Bytes: TypeAlias = NDArray[np.uint8]
TAGS = 32768  # users' tags; those of collectives follow, see `CallRunner.tag`
PENDING = 4096  # tags for calls alike: a rank has fewer of these in progress at a time
MARKS = 1 << 18  # calls that differ have different tags, but for one pair in so many

Request: TypeAlias = Any  # any object that the transport's own `wait` and `test` take


class AbortedError(RuntimeError):
    """Raised when this rank cannot continue because another rank failed."""


class OtherRankError(RuntimeError):
    """Raised when another rank failed, with the message of that rank's error (see Comm.agree)."""


class RankLost(RuntimeError):
    """Raised when another rank is lost for good, and this rank can continue without it.

    Code that raises it has revoked all Comms of this rank, so that all other ranks notice.
    """


class MessageLengthError(RuntimeError):
    """Raised if a message has more or fewer bytes than the array that receives it."""

    def __init__(self, source: int, expected: int, got: str) -> None:
        super().__init__(
            f"a message from rank {source}: expected {expected:,} bytes, got {got}; "
            "receive into an array of the length and the type that is sent"
        )


class NoRoomError(MemoryError):
    """Raised on all ranks alike if a node has too little shared memory."""


class Ledger:
    """Counts messages and bytes sent and received, by peer, without those inside the MPI library.

    It counts data that is really sent, whereas the log of a step records the requested operations:
    a difference between the two shows that one of them is wrong.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        self.sent_messages, self.sent_bytes = [0] * self.size, [0] * self.size
        self.received_messages, self.received_bytes = [0] * self.size, [0] * self.size


class TransportFamily:
    """All transports that one rank has made since it started or last shrank; they become unusable
    together ("revoked") when a rank is lost. In this base class a lost rank ends the job."""

    abandoned = False
    gone: Sequence[int] = ()  # job ranks that were lost before
    system: System = OperatingSystem()

    def abandon(self) -> None:
        """Makes all transports of the family unusable on all ranks, without waiting: operations on
        them raise RankLost. It may be called again."""
        self.abandoned = True

    def lost(self, reason: str) -> RankLost:
        """Makes all transports of the family unusable; returns the RankLost to raise."""
        self.abandon()
        return RankLost(f"{reason}: every rank that is left has to call Comm.shrink()")

    def confirm(self) -> None:
        """Returns on all ranks if all call it and none is lost; otherwise raises RankLost on all
        that are left, which then shrink. A rank that calls `shrink` meanwhile counts
        as not confirming."""

    def shrink(self) -> "Transport":
        """Returns a transport of the ranks that are left, in their old order. It belongs to a new
        TransportFamily, that of all transports until ranks are lost again.

        All survivors call it after they have abandoned this family. Raises RankLost if another rank
        is lost meanwhile, unless the new transport already excludes it.
        """
        raise RuntimeError(
            "this job cannot continue without a lost rank: start it with mpirun --with-ft ulfm of "
            "Open MPI 5 (python -m nnmpi.doctor shows if that is available)"
        )


class Segments(NamedTuple):
    """The shared memory of a node: a buffer for each rank, its barrier and its end."""

    buffers: Sequence[Any]
    sync: Callable[[], None]  # a memory fence, as MPI_Win_sync
    free: Callable[[], None]  # collective


class ShortSum(NamedTuple):
    """A compiled all-reduce of a short array through shared memory."""

    call: Callable[[NDArray[Any]], bool]  # starts; True if complete, as all other ranks called soon
    wait: Callable[[NDArray[Any]], None]  # completes a sum for which `call` has returned False


class SharedWindow(NamedTuple):
    """Memory that all ranks of a node can read and write: one segment of each rank, as bytes. In a
    barrier each rank names its call by a number, a mark; it ends if all have the same."""

    segments: list[Bytes]
    barrier: Callable[[int], None]  # of the node; writes before it are visible to all after it
    ibarrier: Callable[[int], Any]  # returns a request for `wait` and `test` of the transport
    short_sum: Callable[..., ShortSum | None]  # `Barrier.short_sum`; None if ranks are threads
    free: Callable[[], None]  # collective; does nothing if the transport was abandoned
    is_viewed: Callable[[], bool]  # drops the segments; True if other arrays still view them


class Receiver(Protocol):
    """Receives messages: a Transport, or its `receiver`, which checks lengths too."""

    def irecv(self, data: Bytes, source: int, tag: int) -> Request: ...
    def wait(self, requests: Sequence[Request]) -> object: ...
    def test(self, requests: Sequence[Request]) -> bool: ...


class Transport(Receiver, Protocol):
    """Moves bytes between `size` ranks, of which this is `rank`.

    Messages between two ranks with the same tag arrive in the order in which they were sent. No
    message may be longer than `message_limit` bytes (see `pieces`).

    If `fault_tolerant`, an operation that needs a lost rank raises `family.lost(...)`, and so does
    a pending operation on a transport that any rank has revoked. Completed operations stay
    complete. Requests and their buffers are kept until they are complete, since MPI may still write
    to the buffers of abandoned operations.
    """

    rank: int
    size: int
    message_limit: int
    marks: int  # how many marks of calls its tags have room for
    any_thread: bool  # several threads may use it (MPI_THREAD_MULTIPLE)
    ledger: Ledger
    members: Sequence[int]  # each rank's number in the job as it was started
    fault_tolerant: bool  # it raises RankLost; otherwise a lost rank ends the job

    @property
    def family(self) -> TransportFamily: ...

    def isend(self, data: Bytes, to: int, tag: int) -> Request: ...
    def issend(self, data: Bytes, to: int, tag: int) -> Request:
        """Starts a send that is complete only when the message is being received."""

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        """Sends `out` to rank `to` and receives from `source` into `into`, at the same time, each
        unless None; returns when both are complete."""

    def receiver(self) -> Receiver:
        """Returns a receiver that raises MessageLengthError for messages of an unexpected length;
        its `wait` and `test` take only requests of its own `irecv`."""

    def ibarrier(self) -> Request:
        """Returns a request that is complete when all ranks have called `ibarrier` or `barrier`."""

    def barrier(self) -> None:
        """Waits until all ranks have called `barrier` or `ibarrier`."""

    def all_reduce(self, array: NDArray[Any]) -> None:
        """Sums an array in place by the library's own all-reduce."""

    def start_all_reduce(self, array: NDArray[Any]) -> list[Request]: ...

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        """Returns a transport of the same ranks, whose messages cannot match those of this one. It
        counts messages in the same ledger unless another is given."""

    def split(self, color: int | None, key: int) -> Self | None:
        """Returns a transport of the ranks of this color, in order of `key`, or None."""

    def group(self, ranks: Sequence[int]) -> Self:
        """Returns a transport of these ranks; only they call it, and may wait for all."""

    def split_node(self) -> Self:
        """Returns a transport of the ranks that share memory with this one."""

    def free(self) -> None:
        """Frees a transport of `duplicate`, `split` or `group`, unless abandoned; collective."""

    def free_memory(self) -> int:
        """The free bytes of shared memory on this node."""

    def window(self, nbytes: int) -> SharedWindow:
        """Allocates `nbytes` of shared memory on this rank, and returns the segments of all ranks
        of the node; collective within the node."""

    def abort(self, message: str, status: int = 1) -> NoReturn:
        """Prints a message and ends all ranks, processes with the exit status `status`."""


def pieces(data: NDArray[Any], most: int) -> list[NDArray[Any]]:
    """Splits the data into pieces of at most `most` elements; empty data gives one empty piece."""
    return [data[i : i + most] for i in range(0, max(data.size, 1), most)]


def add_up(array: NDArray[Any], rows: Sequence[NDArray[Any]] | NDArray[Any]) -> None:
    """Writes the sum of `rows`, added in row order, to `array`: all ranks get the same bits."""
    array[...] = rows[0]
    for row in rows[1:]:
        np.add(array, row, out=array)
