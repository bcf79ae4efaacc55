"""Ranks as threads of one process: the same collectives without mpirun, for tests and for one rank.

A message is copied when its receive is found, straight from the sender's memory to the receiver's,
and a send is complete only then. That is how MPI treats large messages, so an algorithm that waits
in a circle, or writes to what is being sent, fails here as it would there.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.transport.base import AbortedError, Bytes, Ledger, MessageLengthError, SharedWindow
from nnmpi.comm.transport.gate import sum_loop

MatchKey = tuple[Hashable, int, int, int]  # channel, source, to, tag
Taker = Callable[[list[Any]], object]  # takes the values of all ranks, in the order of the ranks
FAILED_TESTS = 30  # in a row, after which a rank lets other threads run


class DeadlockError(AbortedError):
    """Every rank waits, and none of them can go on."""


class PostedMessage:
    """A send or a receive that was posted."""

    def __init__(self, data: Bytes, sends: bool, what: str) -> None:
        self.data, self.sends, self.what, self.done = data, sends, what, False
        self.error: MessageLengthError | None = None  # raised where it is waited for


class Rendezvous:
    """One collective of a channel; complete when all ranks have brought their values."""

    error = None

    def __init__(self, what: str) -> None:
        self.what, self.done = what, False
        self.brought: dict[int, Any] = {}
        self.takers: list[Taker] = []


Posted = PostedMessage | Rendezvous


class Hub:
    """What the ranks of one process share. Everything in it is touched under its lock."""

    def __init__(self, size: int, per_node: int, free_memory: int = 1 << 62) -> None:
        self.per_node, self.free_memory = per_node, free_memory
        self._changed = threading.Condition()
        self._failure: AbortedError | None = None
        self._running = set(range(size))
        self._waiting: dict[int, Sequence[Posted]] = {}
        self._posted: dict[MatchKey, deque[PostedMessage]] = {}  # all of a key send, or all receive
        self._rendezvous: dict[tuple[Hashable, int], Rendezvous] = {}

    def post(self, message: PostedMessage, key: MatchKey) -> PostedMessage:
        """Copies the message if the other side was posted before, else queues it; returns it."""
        with self._changed:
            self._check()
            queue = self._posted.setdefault(key, deque())
            if not queue or queue[0].sends == message.sends:
                queue.append(message)
                return message
            other = queue.popleft()
            if not queue:
                del self._posted[key]  # tags and channels do not end
            source, into = (message, other) if message.sends else (other, message)
            expected, got = into.data.size, source.data.size
            if got == expected:
                into.data[...] = source.data
            else:
                into.error = MessageLengthError(key[1], expected, f"{got:,}")
            message.done = other.done = True
            self._changed.notify_all()
            return message

    def join(
        self, channel: Hashable, number: int, rank: int, size: int, value: Any, take: Taker
    ) -> Rendezvous:
        """Brings this rank's value to the collective of that number on a channel."""
        with self._changed:
            self._check()
            found = self._rendezvous.setdefault(
                (channel, number), Rendezvous(f"a call of all {size} ranks")
            )
            found.brought[rank] = value
            found.takers.append(take)
            if len(found.brought) == size:
                for taker in found.takers:
                    taker([found.brought[r] for r in range(size)])
                found.done = True
                del self._rendezvous[channel, number]
                self._changed.notify_all()
            return found

    def wait(self, rank: int, requests: Sequence[Posted]) -> None:
        """Returns when all are complete; `rank` is the rank in the whole process."""
        with self._changed:
            self._waiting[rank] = requests
            self._look_for_deadlock()
            self._changed.wait_for(lambda: self._failure or all(q.done for q in requests))
            del self._waiting[rank]
            self._are_done(requests)

    def test(self, requests: Sequence[Posted]) -> bool:
        with self._changed:
            return self._are_done(requests)

    def leave(self, rank: int) -> None:
        """The rank's function has returned."""
        with self._changed:
            self._running.discard(rank)
            self._look_for_deadlock()

    def abort(self, message: str) -> None:
        with self._changed:
            self._fail(AbortedError(message))

    def _are_done(self, requests: Sequence[Posted]) -> bool:
        """What is complete stays so, though another rank has failed since."""
        done = all(q.done for q in requests)
        if not done:
            self._check()
        for q in requests:
            if q.error is not None:
                raise q.error
        return done

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _fail(self, failure: AbortedError) -> None:
        self._failure = self._failure or failure
        self._changed.notify_all()

    def _look_for_deadlock(self) -> None:
        if not self._running or set(self._waiting) != self._running or self._failure:
            return
        if any(all(q.done for q in requests) for requests in self._waiting.values()):
            return
        waits = (
            f"rank {r}: " + ", ".join(q.what for q in requests if not q.done)
            for r, requests in sorted(self._waiting.items())
        )
        self._fail(DeadlockError("every rank waits: " + "; ".join(waits)))


class ThreadTransport:
    """One rank's end of a channel of the hub."""

    any_thread = True

    def __init__(self, hub: Hub, ranks: Sequence[int], rank: int, channel: Hashable) -> None:
        self.rank, self.size = rank, len(ranks)
        self.message_limit = 1 << 62
        self.ledger = Ledger(self.size)
        self.members = ranks
        self._hub, self._channel = hub, channel
        self._collectives = self._failed_tests = 0

    def isend(self, data: Bytes, to: int, tag: int) -> PostedMessage:
        self.ledger.sent_messages[to] += 1
        self.ledger.sent_bytes[to] += data.size
        message = PostedMessage(data, True, f"a send of {data.size} bytes to rank {to}")
        return self._hub.post(message, (self._channel, self.rank, to, tag))

    def irecv(self, data: Bytes, source: int, tag: int) -> PostedMessage:
        self.ledger.received_messages[source] += 1
        self.ledger.received_bytes[source] += data.size
        message = PostedMessage(data, False, f"a receive of {data.size} bytes from rank {source}")
        return self._hub.post(message, (self._channel, source, self.rank, tag))

    def receiver(self) -> Self:
        return self  # the hub compares all lengths

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        requests = [] if into is None else [self.irecv(into, source, tag)]
        requests += [] if out is None else [self.isend(out, to, tag)]
        self.wait(requests)

    def wait(self, requests: Sequence[Posted]) -> None:
        self._hub.wait(self.members[self.rank], requests)

    def test(self, requests: Sequence[Posted]) -> bool:
        done = self._hub.test(requests)
        self._failed_tests = 0 if done else self._failed_tests + 1
        if self._failed_tests >= FAILED_TESTS:  # else it would keep the interpreter lock
            self._failed_tests = 0
            time.sleep(0)
        return done

    def ibarrier(self) -> Rendezvous:
        return self._join(None, len)

    def barrier(self) -> None:
        self.wait([self.ibarrier()])

    def all_reduce(self, array: NDArray[Any]) -> None:
        self.wait(self.start_all_reduce(array))

    def start_all_reduce(self, array: NDArray[Any]) -> list[Rendezvous]:
        def add(values: list[NDArray[Any]]) -> None:
            array[...] = values[0]
            for value in values[1:]:
                np.add(array, value, out=array)

        return [self._join(array.copy(), add)]

    def duplicate(self, ledger: Ledger | None = None) -> Self:
        self._collectives += 1
        channel = (self._channel, self._collectives)
        new = type(self)(self._hub, self.members, self.rank, channel)
        new.ledger = ledger or self.ledger
        return new

    def split(self, color: int | None, key: int) -> Self | None:
        rows = self._gather((color, key, self.rank))
        if color is None:
            return None
        group = [r for _, _, r in sorted(row for row in rows if row[0] == color)]
        channel = (self._channel, self._collectives, color)
        ranks = [self.members[r] for r in group]
        return type(self)(self._hub, ranks, group.index(self.rank), channel)

    def split_node(self) -> Self:
        node = self.split(self.members[self.rank] // self._hub.per_node, self.rank)
        assert node is not None
        return node

    def free(self) -> None:
        pass  # nothing is held for a channel

    def free_memory(self) -> int:
        return self._hub.free_memory

    def window(self, nbytes: int) -> SharedWindow:
        segments, own = self._gather(np.zeros(nbytes, np.uint8)), self.duplicate()

        def exchange(array: NDArray[Any], parts: Sequence[NDArray[Any]]) -> None:
            parts[self.rank][...] = array
            own.barrier()
            sum_loop(array, *parts)

        return SharedWindow(
            segments,
            sync=lambda: None,
            barrier=own.barrier,
            ibarrier=lambda: [own.ibarrier()],
            exchange=exchange,
            free=own.free,  # arrays that view it stay valid
            is_viewed=lambda: False,
        )

    def abort(self, message: str, status: int = 1) -> None:
        self._hub.abort(message)
        raise AbortedError(message)

    def _join(self, value: Any, take: Taker) -> Rendezvous:
        self._collectives += 1
        return self._hub.join(self._channel, self._collectives, self.rank, self.size, value, take)

    def _gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks."""
        values: list[Any] = []
        self.wait([self._join(value, values.extend)])
        return values
