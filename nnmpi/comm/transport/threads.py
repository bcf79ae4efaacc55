"""Ranks as threads of one process: the same collectives without mpirun, for tests and for one rank.

A message is copied when its receive is found, straight from the sender's memory to the receiver's,
and a send is complete only then. That is how MPI treats large messages, so a plan that waits in a
circle, or writes to what is being sent, fails here as it would there.
"""

import contextvars
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.communicator import Comm
from nnmpi.comm.debug import watchdog
from nnmpi.comm.debug.call_log import Guard, Settings
from nnmpi.comm.progress.work import Progress
from nnmpi.comm.transport.base import AbortedError, Bytes, Ledger, OtherRankError, Window

T = TypeVar("T")
Key = tuple[Hashable, int, int, int]  # channel, source, to, tag
PATIENCE = 30  # times that a rank asks in vain before it lets the others have their turn


class DeadlockError(AbortedError):
    """Every rank waits, and none of them can go on."""


class Transfer:
    """A send or a receive that was posted."""

    def __init__(self, data: Bytes, what: str) -> None:
        self.data, self.what, self.done = data, what, False


class Meeting:
    """A call that all ranks of a channel make together; complete when the last has come."""

    def __init__(self, size: int, what: str) -> None:
        self.values: dict[int, Any] = {}
        self.size, self.what = size, what

    @property
    def done(self) -> bool:
        return len(self.values) == self.size


class _Sum:
    """A meeting to which everybody brings an array; the sum is put in `into` when all have come."""

    def __init__(self, meeting: Meeting, into: NDArray[Any]) -> None:
        self.what, self._meeting, self._into = "a sum over all ranks", meeting, into
        self._added = False

    @property
    def done(self) -> bool:
        if self._meeting.done and not self._added:
            self._into[...] = self._meeting.values[0]
            for rank in range(1, self._meeting.size):
                np.add(self._into, self._meeting.values[rank], out=self._into)
            self._added = True
        return self._added


Posted = Transfer | Meeting | _Sum


class Hub:
    """What the ranks of one process share. Everything in it is touched under its lock."""

    def __init__(self, size: int, per_node: int) -> None:
        self.per_node, self.room = per_node, 1 << 62  # bytes of "shared" memory
        self.changed = threading.Condition()
        self.failure: AbortedError | None = None
        self._alive = set(range(size))
        self._waiting: dict[int, Sequence[Posted]] = {}
        self._sends: dict[Key, deque[Transfer]] = defaultdict(deque)
        self._recvs: dict[Key, deque[Transfer]] = defaultdict(deque)
        self._meetings: dict[tuple[Hashable, int], Meeting] = {}

    def post(self, transfer: Transfer, key: Key, sends: bool) -> None:
        """Meets the transfer waiting on the other side, or waits for it."""
        with self.changed:
            self._check()
            mine, theirs = (self._sends, self._recvs) if sends else (self._recvs, self._sends)
            if not theirs[key]:
                mine[key].append(transfer)
                return
            other = theirs[key].popleft()
            source, into = (transfer, other) if sends else (other, transfer)
            if source.data.size != into.data.size:
                self._fail(AbortedError(f"{source.what} meets {into.what}"))
                self._check()
            into.data[...] = source.data
            transfer.done = other.done = True
            self.changed.notify_all()

    def meet(self, channel: Hashable, number: int, rank: int, size: int, value: Any) -> Meeting:
        """The meeting of that number on a channel, which this rank joins with a value."""
        with self.changed:
            self._check()
            what = f"a call of all {size} ranks"
            meeting = self._meetings.setdefault((channel, number), Meeting(size, what))
            meeting.values[rank] = value
            if meeting.done:
                del self._meetings[channel, number]
                self.changed.notify_all()
            return meeting

    def wait(self, rank: int, requests: Sequence[Posted]) -> None:
        """Until all are done; `rank` is the rank in the whole process."""
        with self.changed:
            self._waiting[rank] = requests
            self._look_for_deadlock()
            self.changed.wait_for(lambda: self.failure or all(q.done for q in requests))
            del self._waiting[rank]
            self._are_done(requests)

    def test(self, requests: Sequence[Posted]) -> bool:
        with self.changed:
            return self._are_done(requests)

    def leave(self, rank: int) -> None:
        """The rank's function has returned."""
        with self.changed:
            self._alive.discard(rank)
            self._look_for_deadlock()

    def abort(self, message: str) -> None:
        with self.changed:
            self._fail(AbortedError(message))

    def _are_done(self, requests: Sequence[Posted]) -> bool:
        """What is done stays done, though somebody has failed since."""
        done = all(q.done for q in requests)
        if not done:
            self._check()
        return done

    def _check(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def _fail(self, failure: AbortedError) -> None:
        self.failure = self.failure or failure
        self.changed.notify_all()

    def _look_for_deadlock(self) -> None:
        if not self._alive or set(self._waiting) != self._alive or self.failure:
            return
        if any(all(q.done for q in requests) for requests in self._waiting.values()):
            return
        waits = (
            f"rank {r}: " + ", ".join(q.what for q in requests if not q.done)
            for r, requests in sorted(self._waiting.items())
        )
        self._fail(DeadlockError("every rank waits: " + "; ".join(waits)))


class ThreadTransport:
    """One rank's way to the others."""

    any_thread = True

    def __init__(self, hub: Hub, ranks: Sequence[int], rank: int, channel: Hashable) -> None:
        self.rank, self.size = rank, len(ranks)
        self.piece = 1 << 62
        self.ledger = Ledger(self.size)
        self._hub, self._ranks, self._channel = hub, ranks, channel
        self.members = ranks
        self._me = ranks[rank]
        self._met = self._vain = 0

    def isend(self, data: Bytes, to: int, tag: int) -> Transfer:
        self.ledger.sent_messages[to] += 1
        self.ledger.sent_bytes[to] += data.size
        transfer = Transfer(data, f"a send of {data.size} bytes to rank {to}")
        self._hub.post(transfer, (self._channel, self.rank, to, tag), sends=True)
        return transfer

    def irecv(self, data: Bytes, source: int, tag: int) -> Transfer:
        self.ledger.received_messages[source] += 1
        self.ledger.received_bytes[source] += data.size
        transfer = Transfer(data, f"a receive of {data.size} bytes from rank {source}")
        self._hub.post(transfer, (self._channel, source, self.rank, tag), sends=False)
        return transfer

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        requests = [] if into is None else [self.irecv(into, source, tag)]
        requests += [] if out is None else [self.isend(out, to, tag)]
        self.wait(requests)

    def wait(self, requests: Sequence[Posted]) -> None:
        self._hub.wait(self._me, requests)

    def test(self, requests: Sequence[Posted]) -> bool:
        done = self._hub.test(requests)
        self._vain = 0 if done else self._vain + 1
        if self._vain >= PATIENCE:  # else it would keep Python to itself, and others from going on
            self._vain = 0
            time.sleep(0)
        return done

    def ibarrier(self) -> Meeting:
        return self._join(None)

    def barrier(self) -> None:
        self.wait([self.ibarrier()])

    def all_reduce(self, array: NDArray[Any]) -> None:
        self.wait(self.start_all_reduce(array))

    def start_all_reduce(self, array: NDArray[Any]) -> list[_Sum]:
        return [_Sum(self._join(array.copy()), array)]

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        self._met += 1
        new = type(self)(self._hub, self._ranks, self.rank, (self._channel, self._met))
        new.ledger = ledger or self.ledger
        return new

    def split(self, color: int | None, key: int) -> Self | None:
        wishes = self._gather((color, key, self.rank))
        if color is None:
            return None
        group = [r for _, _, r in sorted(w for w in wishes if w[0] == color)]
        channel = (self._channel, self._met, color)
        ranks = [self._ranks[r] for r in group]
        return type(self)(self._hub, ranks, group.index(self.rank), channel)

    def split_node(self) -> Self:
        node = self.split(self._me // self._hub.per_node, self.rank)
        assert node is not None
        return node

    def free(self) -> None:
        pass  # nothing is held for a channel

    def room(self) -> int:
        return self._hub.room

    def window(self, nbytes: int) -> Window:
        segments = self._gather(np.zeros(nbytes, np.uint8))
        return Window(segments, sync=lambda: None, free=lambda: None)

    def abort(self, message: str) -> None:
        self._hub.abort(message)
        raise AbortedError(message)

    def _join(self, value: Any) -> Meeting:
        self._met += 1
        return self._hub.meet(self._channel, self._met, self.rank, self.size, value)

    def _gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks."""
        meeting = self._join(value)
        self.wait([meeting])
        return [meeting.values[r] for r in range(self.size)]


def run(size: int, f: Callable[..., T], *arguments: Any, per_node: int | None = None) -> list[T]:
    """Calls f(comm, *arguments) on every rank, and returns what each gave.

    If a rank raises, the others stop waiting, and what it raised is raised here. With `per_node`,
    so many ranks in a row pass for a node, and only they share memory.
    """
    hub, results, errors = Hub(size, per_node or size), {}, {}
    settings = Settings.of(os.environ)
    ranks = [Progress(Guard(settings)) for _ in range(size)]

    def main(rank: int) -> None:
        try:
            comm = Comm(ThreadTransport(hub, range(size), rank, "world"), progress=ranks[rank])
            results[rank] = f(comm, *arguments)
        except BaseException as error:
            errors[rank] = error
            hub.abort(f"rank {rank} raised {type(error).__name__}: {error}")
        finally:
            hub.leave(rank)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(main, rank), daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    watchdog.join(threads, ranks, hub.abort)
    # last come ranks that say that another one has failed, which says why
    others = (AbortedError, OtherRankError)
    for error in sorted(errors.values(), key=lambda e: isinstance(e, others)):
        raise error
    return [results[rank] for rank in range(size)]


def alone() -> Comm:
    """One rank without MPI."""
    return Comm(ThreadTransport(Hub(1, 1), range(1), 0, "world"))
