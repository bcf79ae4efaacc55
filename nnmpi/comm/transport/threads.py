"""Ranks as threads of one process: the same collectives without mpirun, for tests and for one rank.

A message is copied when its receive is found, straight from the sender's memory to the receiver's,
and a send is complete only then. That is how MPI treats large messages, so an algorithm that waits
in a circle, or writes to what is being sent, fails here as it would there.

A rank may be killed, at one of its operations of the hub or by `Hub.lose`:

rank 0   receive from 1   RankLost, abandons ─────────┐   shrink ──► ranks 0 and 2
rank 1   ✗                                            │ revoked
rank 2   waits for 0, which is there: goes on until ──┴─► RankLost, abandons   shrink
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.transport.base import (
    AbortedError,
    Bytes,
    Ledger,
    MessageLengthError,
    SharedWindow,
    TransportFamily,
)
from nnmpi.comm.transport.gate import sum_loop

MatchKey = tuple[Hashable, int, int, int]  # channel, source, to, tag
Taker = Callable[[list[Any]], object]  # takes the values of all ranks, in the order of the ranks
FAILED_TESTS = 30  # in a row, after which a rank lets other threads run


class DeadlockError(AbortedError):
    """Every rank waits, and none of them can go on."""


class Killed(BaseException):  # not an Exception: no code of a rank goes on after it
    """This rank is lost: its thread ends, as a process does by SIGKILL."""


class Posted:
    """What a rank waits for, on a channel: `awaited` are the ranks of the job that it needs."""

    error: MessageLengthError | None = None  # raised where it is waited for
    done = False

    def __init__(self, what: str, channel: Hashable, awaited: Collection[int]) -> None:
        self.what, self.channel, self.awaited = what, channel, awaited


class PostedMessage(Posted):
    """A send or a receive that was posted."""

    def __init__(self, data: Bytes, sends: bool, what: str, channel: Hashable, peer: int) -> None:
        super().__init__(what, channel, (peer,))
        self.data, self.sends = data, sends


class Rendezvous(Posted):
    """One collective of a channel; complete when all ranks have brought their values."""

    def __init__(self, channel: Hashable, members: Sequence[int]) -> None:
        self.awaited: set[int] = set(members)
        super().__init__(f"a call of all {len(members)} ranks", channel, self.awaited)
        self.brought: dict[int, Any] = {}  # by the rank in the job
        self.takers: list[Taker] = []


class Shrinking(Posted):
    """A rendezvous of the ranks that are left, however many these are when it is complete."""

    def __init__(self, number: int) -> None:
        super().__init__("a shrink of all ranks that are left", ("shrunk", number), ())
        self.number, self.here = number, set[int]()
        self.ranks: list[int] = []  # of the new transport, once it is complete


class Hub:
    """What the ranks of one process share. Everything in it is touched under its lock.

    `killed` are ranks with the numbers, from 1, of the operation of the hub at which each is lost.
    """

    def __init__(
        self,
        size: int,
        per_node: int,
        free_memory: int = 1 << 62,
        fault_tolerant: bool = False,
        killed: Mapping[int, int] | None = None,
    ) -> None:
        self.per_node, self.free_memory, self.fault_tolerant = per_node, free_memory, fault_tolerant
        self._changed = threading.Condition()
        self._failure: AbortedError | None = None
        self._running, self._lost = set(range(size)), set[int]()
        self._left = dict(killed or {})  # operations that those ranks still make, the last included
        self._revoked = set[Hashable]()
        self._shrinking = Shrinking(1)
        self._waiting: dict[int, Sequence[Posted]] = {}
        self._posted: dict[MatchKey, deque[PostedMessage]] = {}  # all of a key send, or all receive
        self._rendezvous: dict[tuple[Hashable, int], Rendezvous] = {}

    def post(self, by: "ThreadTransport", message: PostedMessage, key: MatchKey) -> PostedMessage:
        """Copies the message if the other side was posted before, else queues it; returns it."""
        with self._changed:
            self._count(by)
            self._check(by, (message,))
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
        self, by: "ThreadTransport", channel: Hashable, number: int, value: Any, take: Taker
    ) -> Rendezvous:
        """Brings this rank's value to the collective of that number on a channel."""
        with self._changed:
            self._count(by)
            found = self._rendezvous.get((channel, number)) or Rendezvous(channel, by.members)
            self._check(by, (found,))
            self._rendezvous[channel, number] = found
            found.brought[by.job_rank] = value
            found.awaited.discard(by.job_rank)
            found.takers.append(take)
            if not found.awaited:
                for taker in found.takers:
                    taker([found.brought[r] for r in by.members])
                found.done = True
                del self._rendezvous[channel, number]
                self._changed.notify_all()
            return found

    def wait(self, by: "ThreadTransport", requests: Sequence[Posted]) -> None:
        """Returns when all are complete."""
        with self._changed:
            self._count(by)
            self._wait(by, requests)

    def test(self, by: "ThreadTransport", requests: Sequence[Posted]) -> bool:
        with self._changed:
            self._count(by)
            return self._are_done(by, requests)

    def shrink(self, by: "ThreadTransport") -> tuple[Hashable, Sequence[int]]:
        """The channel and the ranks of what all ranks that are left have called this for."""
        with self._changed:
            self._count(by)
            shrinking = self._shrinking
            shrinking.here.add(by.job_rank)
            self._shrink_if_all_are_here()
            self._wait(by, (shrinking,))
            return shrinking.channel, shrinking.ranks

    def revoke(self, channel: Hashable) -> None:
        """Ends all operations on a channel that are not complete."""
        with self._changed:
            self._revoked.add(channel)
            self._changed.notify_all()

    def lose(self, rank: int) -> None:
        """The rank is killed: it ends at its next operation, or in the one that it waits in."""
        with self._changed:
            self._lost.add(rank)
            self.leave(rank)
            self._changed.notify_all()

    def leave(self, rank: int) -> None:
        """The rank's function has returned."""
        with self._changed:
            self._running.discard(rank)
            self._shrink_if_all_are_here()
            self._look_for_deadlock()

    def is_lost(self, rank: int) -> bool:
        with self._changed:
            return rank in self._lost

    def abort(self, message: str) -> None:
        with self._changed:
            self._fail(AbortedError(message))

    def _count(self, by: "ThreadTransport") -> None:
        """Counts an operation of a rank, and raises Killed where it has made its last one."""
        rank = by.job_rank
        if rank in self._left:
            self._left[rank] -= 1
            if self._left[rank] == 0:
                self.lose(rank)
        if rank in self._lost:
            raise Killed(f"rank {rank} was killed")

    def _wait(self, by: "ThreadTransport", requests: Sequence[Posted]) -> None:
        rank = by.job_rank
        self._waiting[rank] = requests
        self._look_for_deadlock()
        self._changed.wait_for(lambda: self._failure or self._goes_on(rank, requests))
        del self._waiting[rank]
        if rank in self._lost:
            raise Killed(f"rank {rank} was killed")
        self._are_done(by, requests)

    def _goes_on(self, rank: int, requests: Sequence[Posted]) -> bool:
        """Whether a rank that waits for these does so no longer."""
        return (
            rank in self._lost or all(q.done for q in requests) or any(map(self._fails, requests))
        )

    def _fails(self, posted: Posted) -> bool:
        """Whether it can never be complete: it is revoked, or a rank that it needs is lost."""
        is_cut = posted.channel in self._revoked or not self._lost.isdisjoint(posted.awaited)
        return is_cut and self.fault_tolerant and not posted.done

    def _shrink_if_all_are_here(self) -> None:
        shrinking = self._shrinking
        if shrinking.here and self._running <= shrinking.here:
            shrinking.ranks, shrinking.done = sorted(self._running), True
            self._shrinking = Shrinking(shrinking.number + 1)
            self._changed.notify_all()

    def _are_done(self, by: "ThreadTransport", requests: Sequence[Posted]) -> bool:
        """What is complete stays so, though another rank has failed since."""
        done = all(q.done for q in requests)
        if not done:
            self._check(by, requests)
        for q in requests:
            if q.error is not None:
                raise q.error
        return done

    def _check(self, by: "ThreadTransport", requests: Sequence[Posted]) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
        if any(map(self._fails, requests)):
            lost = ", ".join(map(str, sorted(self._lost)))
            raise by.family.lost(f"lost: rank {lost}" if lost else "a rank has abandoned its Comms")

    def _fail(self, failure: AbortedError) -> None:
        self._failure = self._failure or failure
        self._changed.notify_all()

    def _look_for_deadlock(self) -> None:
        if not self._running or not self._running <= self._waiting.keys() or self._failure:
            return
        if any(self._goes_on(rank, requests) for rank, requests in self._waiting.items()):
            return
        waits = (
            f"rank {r}: " + ", ".join(q.what for q in requests if not q.done)
            for r, requests in sorted(self._waiting.items())
        )
        self._fail(DeadlockError("every rank waits: " + "; ".join(waits)))


class ThreadTransport:
    """One rank's end of a channel of the hub."""

    any_thread = True

    def __init__(
        self,
        hub: Hub,
        ranks: Sequence[int],
        rank: int,
        channel: Hashable,
        family: TransportFamily | None = None,
    ) -> None:
        self.rank, self.size = rank, len(ranks)
        self.message_limit = 1 << 62
        self.ledger = Ledger(self.size)
        self.members, self.job_rank = ranks, ranks[rank]
        self.fault_tolerant, self.family = hub.fault_tolerant, family or TransportFamily()
        self._hub, self._channel = hub, channel
        self._collectives = self._failed_tests = 0
        self.family.add(self)

    def isend(self, data: Bytes, to: int, tag: int) -> PostedMessage:
        self.ledger.sent_messages[to] += 1
        self.ledger.sent_bytes[to] += data.size
        what = f"a send of {data.size} bytes to rank {to}"
        message = PostedMessage(data, True, what, self._channel, self.members[to])
        return self._hub.post(self, message, (self._channel, self.rank, to, tag))

    def irecv(self, data: Bytes, source: int, tag: int) -> PostedMessage:
        self.ledger.received_messages[source] += 1
        self.ledger.received_bytes[source] += data.size
        what = f"a receive of {data.size} bytes from rank {source}"
        message = PostedMessage(data, False, what, self._channel, self.members[source])
        return self._hub.post(self, message, (self._channel, source, self.rank, tag))

    def receiver(self) -> Self:
        return self  # the hub compares all lengths

    def exchange(
        self, out: Bytes | None, to: int, into: Bytes | None, source: int, tag: int
    ) -> None:
        requests = [] if into is None else [self.irecv(into, source, tag)]
        requests += [] if out is None else [self.isend(out, to, tag)]
        self.wait(requests)

    def wait(self, requests: Sequence[Posted]) -> None:
        self._hub.wait(self, requests)

    def test(self, requests: Sequence[Posted]) -> bool:
        done = self._hub.test(self, requests)
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
        new = type(self)(self._hub, self.members, self.rank, channel, self.family)
        new.ledger = ledger or self.ledger
        return new

    def split(self, color: int | None, key: int) -> Self | None:
        rows = self._gather((color, key, self.rank))
        if color is None:
            return None
        group = [r for _, _, r in sorted(row for row in rows if row[0] == color)]
        channel = (self._channel, self._collectives, color)
        ranks = [self.members[r] for r in group]
        return type(self)(self._hub, ranks, group.index(self.rank), channel, self.family)

    def split_node(self) -> Self:
        node = self.split(self.job_rank // self._hub.per_node, self.rank)
        assert node is not None
        return node

    def free(self) -> None:
        self.family.remove(self)

    def revoke(self) -> None:
        self._hub.revoke(self._channel)

    def shrink(self) -> Self:
        channel, ranks = self._hub.shrink(self)
        return type(self)(self._hub, ranks, ranks.index(self.job_rank), channel)

    def die(self) -> NoReturn:
        """Kills this rank, whose thread calls it."""
        self._hub.lose(self.job_rank)
        raise Killed(f"rank {self.job_rank} has killed itself")

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
        return self._hub.join(self, self._channel, self._collectives, value, take)

    def _gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks."""
        values: list[Any] = []
        self.wait([self._join(value, values.extend)])
        return values
