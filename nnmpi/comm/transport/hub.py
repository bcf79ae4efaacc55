"""The hub: the meeting point of ranks that are threads of one process.

A message is copied from the sender's memory to the receiver's when its send and receive match, and
the send is complete only then. MPI treats large messages like that, so an algorithm that waits in a
circle, or writes to a buffer that is being sent, fails with threads as it would with MPI.

A rank may be killed: at one of its operations, or by `lose`.

rank 0   receives from rank 1       RankLost ─ revokes ─────────┐     shrinks ──► ranks 0 and 2
rank 1   killed                                                 │
rank 2   receives from rank 0, which is alive: waits until ─────┴─► RankLost     shrinks
"""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from nnmpi.comm.transport.base import AbortedError, Bytes, MessageLengthError, RankLost
from nnmpi.comm.transport.scheduler import FreeThreads, Scheduler

MatchKey: TypeAlias = tuple[Hashable, int, int, int]  # channel, source, to, tag
Callback: TypeAlias = Callable[[list[Any]], object]  # gets the values of all ranks, in rank order


class DeadlockError(AbortedError):
    """Raised on all ranks when every rank waits and none of them can continue."""


class RankKilled(BaseException):  # not an Exception: a killed process handles no errors either
    """Raised in the thread of a lost rank to end it, as SIGKILL ends a process."""


class Caller(Protocol):
    """The rank that calls an operation. `era` says how often the job has shrunk (made new
    communicators without lost ranks), `members` which ranks were left then; at first all."""

    job_rank: int
    era: int
    members: Sequence[int]

    def lost(self, reason: str) -> RankLost: ...


class PostedMessage:
    """A send or receive that a rank has posted to the hub, complete when `done`."""

    def __init__(self, data: Bytes, sends: bool, label: str, era: int, peer: int) -> None:
        self.data, self.sends, self.label, self.done = data, sends, label, False
        self.era, self.awaited = era, (peer,)
        self.error: MessageLengthError | None = None  # raised by `wait` and `test`


class Rendezvous:
    """One collective of threads: complete when all ranks have brought a value."""

    error = None

    def __init__(self, era: int, ranks: Sequence[int]) -> None:
        self.label, self.done = f"a call of all {len(ranks)} ranks", False
        self.era, self._ranks = era, ranks
        self.brought: dict[int, Any] = {}
        self.callbacks: list[Callback] = []

    @property
    def awaited(self) -> Collection[int]:
        """The ranks that have not arrived."""
        return {*self._ranks} - self.brought.keys()


class SurvivorMeeting:
    """The collective of survivors: complete when each rank has ended or called it."""

    label, error, awaited = "all ranks that are left", None, ()

    def __init__(self, number: int) -> None:
        self.era, self.done = number, False
        self.came: dict[int, bool] = {}  # the ranks that have come; True if by `confirm`
        self.ranks: list[int] = []  # set on completion


Posted: TypeAlias = PostedMessage | Rendezvous | SurvivorMeeting
_DONE = attrgetter("done")


class Hub:
    """Exchanges messages of ranks that are threads; one lock guards all its state.

    `killed` maps ranks to the number, from 1, of the operation at which each is lost. If every rank
    waits, `explain` may return the error that says why.
    """

    def __init__(
        self,
        size: int,
        per_node: int,
        free_memory: int = 1 << 62,
        fault_tolerant: bool = False,
        killed: Mapping[int, int] | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.size, self.per_node, self.free_memory = size, per_node, free_memory
        self.fault_tolerant = fault_tolerant
        self.scheduler: Scheduler = scheduler or FreeThreads(size)
        self._lock = self.scheduler.lock
        self._failure: RuntimeError | None = None
        self.explain: Callable[[], RuntimeError | None] = lambda: None
        self._running, self._lost = set(range(size)), set[int]()
        self._remaining = dict(killed or {})  # operations until a rank is killed, the last included
        self._noticed = [set[tuple[str, int]]() for _ in range(size)]  # by rank: what it knows of
        self._meeting = SurvivorMeeting(1)
        self._completed: dict[int, SurvivorMeeting] = {}  # by rank: unconfirmed, must shrink
        self._waiting: dict[int, Sequence[Posted]] = {}
        self._posted: dict[MatchKey, deque[PostedMessage]] = {}  # only sends or only receives a key
        self._rendezvous: dict[Hashable, Rendezvous] = {}

    # ---- operations of a rank

    def post(self, caller: Caller, message: PostedMessage, key: MatchKey) -> PostedMessage:
        """Posts a send or receive. If its match, with the same `key`, is there already, the message
        is delivered; otherwise it waits."""
        with self._lock:
            self._begin(caller, "posts", (message,))
            queue = self._posted.get(key, deque())
            if not (queue and queue[0].done):  # else it has left its sender, who may be lost
                self._check(caller, (message,))
            if not queue or queue[0].sends == message.sends:
                self._posted.setdefault(key, queue).append(message)
                if message.sends and self.scheduler.buffers(message):
                    message.data, message.done = message.data.copy(), True
                return message
            other = queue.popleft()
            if not queue:
                del self._posted[key]  # new tags and channels keep coming
            source, into = (message, other) if message.sends else (other, message)
            self.scheduler.deliver(source, into, partial(self._complete, source, into, key[1]))
            return message

    def join(
        self, caller: Caller, key: Hashable, ranks: Sequence[int], value: Any, callback: Callback
    ) -> Rendezvous:
        """Enters the calling rank, with a value, into the collective of `ranks` called `key`;
        returns it, complete or not. When all have joined, `callback` gets their values, in the
        order of `ranks`."""
        with self._lock:
            self._begin(caller, "joins", ())
            rendezvous = self._rendezvous.get(key) or Rendezvous(caller.era, ranks)
            self._check(caller, (rendezvous,))
            self._rendezvous[key] = rendezvous
            rendezvous.brought[caller.job_rank] = value
            rendezvous.callbacks.append(callback)
            if len(rendezvous.brought) == len(ranks):
                for complete in rendezvous.callbacks:
                    complete([rendezvous.brought[rank] for rank in ranks])
                rendezvous.done = True
                del self._rendezvous[key]
                self.scheduler.wake(ranks)
            return rendezvous

    def wait(self, caller: Caller, requests: Sequence[Posted]) -> None:
        """Returns when all requests are complete."""
        rank = caller.job_rank
        with self._lock:
            self._begin(caller, "waits for", requests)
            self._waiting[rank] = requests
            self.look_for_deadlock()
            self.scheduler.wait(rank, partial(self._can_go_on, rank, requests))
            del self._waiting[rank]
            if rank in self._lost:
                raise RankKilled(f"rank {rank} was killed")
            self._all_done(caller, requests)

    def test(self, caller: Caller, requests: Sequence[Posted]) -> bool:
        """Returns True if all requests are complete, without waiting."""
        with self._lock:
            self._begin(caller, "tests", requests)
            return self._all_done(caller, requests)

    def confirm(self, caller: Caller) -> None:
        """Returns on all ranks if all call it and none is lost since the last `shrink`, otherwise
        raises RankLost on all."""
        with self._lock:
            meeting = self._meet(caller, confirms=True)
            if meeting.ranks != [*caller.members] or not all(meeting.came.values()):
                self._completed[caller.job_rank] = meeting
                raise self._loss(caller)

    def shrink(self, caller: Caller) -> SurvivorMeeting:
        """Waits for each survivor's `shrink` or `confirm`; returns the meeting."""
        with self._lock:
            return self._completed.pop(caller.job_rank, None) or self._meet(caller, confirms=False)

    # ---- what happens to a rank, and to all

    def revoke(self, era: int) -> None:
        """Makes all pending and later operations raise RankLost on Comms of this era."""
        with self._lock:
            self._tell(("revoked", era))

    def lose(self, rank: int) -> None:
        """Kills a rank: its current wait or its next operation raises RankKilled."""
        with self._lock:
            self._lost.add(rank)
            self._tell(("lost", rank))
            self.leave(rank)

    def is_lost(self, rank: int) -> bool:
        with self._lock:
            return rank in self._lost

    def is_running(self, rank: int) -> bool:
        """True until the rank is lost or its function has returned."""
        with self._lock:
            return rank in self._running

    def enter(self, rank: int) -> None:
        """Waits until the scheduler lets the thread of a rank begin."""
        with self._lock:
            self.scheduler.begin(rank, self)

    def end(self, rank: int) -> None:
        """Records that the thread of a rank has ended."""
        with self._lock:
            self.leave(rank)
            self.scheduler.end(rank)

    def leave(self, rank: int) -> None:
        """Records that a rank takes part no more: it has returned, or was killed."""
        with self._lock:
            self._running.discard(rank)
            self._complete_meeting()
            self.look_for_deadlock()

    def abort(self, message: str) -> None:
        self.fail(AbortedError(message))

    def fail(self, error: RuntimeError) -> None:
        """Raises the error on all ranks, in the operation that each waits in or calls next."""
        with self._lock:
            self._fail(error)

    # ---- under the lock

    def look_for_deadlock(self) -> None:
        """Ends the job if every rank waits, and none of them can continue."""
        if self.scheduler.pending or self._failure:
            return
        if not self._running or not self._running <= self._waiting.keys():
            return
        if any(starmap(self._can_go_on, self._waiting.items())):
            return
        waits = (
            f"rank {r}: " + ", ".join(q.label for q in requests if not q.done)
            for r, requests in sorted(self._waiting.items())
        )
        self._fail(self.explain() or DeadlockError("every rank waits: " + "; ".join(waits)))

    def _begin(self, caller: Caller, verb: str, requests: Sequence[Posted]) -> None:
        """Waits until the scheduler lets the rank `caller` go on, and counts the operation; raises
        RankKilled if the rank is to be lost at it, or is lost already."""
        rank = caller.job_rank
        self.scheduler.turn(rank, verb, requests)
        if rank in self._remaining:
            self._remaining[rank] -= 1
            if self._remaining[rank] == 0:
                self.lose(rank)
        if rank in self._lost:
            raise RankKilled(f"rank {rank} was killed")

    def _can_go_on(self, rank: int, requests: Sequence[Posted]) -> bool:
        """Returns True if a rank that waits for these requests need not wait longer: they are
        complete, one of them can never be, the job has failed, or this rank is lost."""
        if self._failure is not None or all(map(_DONE, requests)):
            return True
        return self.fault_tolerant and (rank in self._lost or self._any_broken(rank, requests))

    def _any_broken(self, rank: int, requests: Sequence[Posted]) -> bool:
        """True if a request can never complete: revoked, or its rank is lost."""
        noticed = self._noticed[rank]
        return bool(noticed) and any(
            not posted.done
            and (
                ("revoked", posted.era) in noticed
                or any(("lost", peer) in noticed for peer in posted.awaited)
            )
            for posted in requests
        )

    def _complete(self, source: PostedMessage, into: PostedMessage, sender: int) -> None:
        """Copies a message from its send to its receive, and marks both as complete."""
        expected, got = into.data.size, source.data.size
        if got == expected:
            into.data[...] = source.data
        else:
            into.error = MessageLengthError(sender, expected, f"{got:,}")
        source.done = into.done = True
        self.scheduler.wake((*source.awaited, *into.awaited))

    def _tell(self, fact: tuple[str, int]) -> None:
        """Tells all ranks of a fact: ("lost", rank), or ("revoked", era)."""
        for rank, noticed in enumerate(self._noticed):
            self.scheduler.notify(rank, fact, partial(noticed.add, fact))
        self.scheduler.wake(range(self.size))

    def _all_done(self, caller: Caller, requests: Sequence[Posted]) -> bool:
        """Returns True if all requests are complete; raises an error if one can never be. A
        complete request stays complete even if a rank fails."""
        done = all(map(_DONE, requests))
        if not done:
            self._check(caller, requests)
        for q in requests:
            if q.error is not None:
                raise q.error
        return done

    def _check(self, caller: Caller, requests: Sequence[Posted]) -> None:
        """Raises if the job has failed, or if a request can never complete."""
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
        if self.fault_tolerant and self._any_broken(caller.job_rank, requests):
            raise self._loss(caller)

    def _loss(self, caller: Caller) -> RankLost:
        lost = ", ".join(map(str, sorted(self._lost)))
        return caller.lost(f"lost ranks: {lost}" if lost else "a rank has abandoned its Comms")

    def _meet(self, caller: Caller, confirms: bool) -> SurvivorMeeting:
        self._begin(caller, "confirms" if confirms else "shrinks", ())
        meeting = self._meeting
        meeting.came[caller.job_rank] = confirms
        self._complete_meeting()
        self.wait(caller, (meeting,))  # counts too: a rank may be killed before or after it comes
        return meeting

    def _complete_meeting(self) -> None:
        """Lets the surviving ranks go on, if all of them have called `shrink` or `confirm`."""
        meeting = self._meeting
        if meeting.came and self._running <= meeting.came.keys():
            meeting.ranks, meeting.done = sorted(self._running), True
            self._meeting = SurvivorMeeting(meeting.era + 1)
            self.scheduler.wake(range(self.size))

    def _fail(self, failure: RuntimeError) -> None:
        self._failure = self._failure or failure
        self.scheduler.wake(range(self.size))
