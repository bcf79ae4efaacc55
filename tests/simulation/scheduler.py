"""The simulated scheduler: one rank runs at a time, until its next operation.

    rank 0    posts ─────────────────────────────────── waits ──┐
    rank 1            tests ─── posts ──┐                       ▼
    network                             └─────── its message arrives
              a turn  a turn    a turn   ...  in an order that is decided

A turn is one operation of a rank, or one event of the network: a message arrives, a rank notices a
loss. Who has the next turn is decided when every rank is at an operation, so a run depends on
decisions only. After a test in vain the other ranks come first: the rank polls.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

from nnmpi.comm.transport.hub import Hub, PostedMessage
from simulation.case import Case, Decisions
from simulation.held import StatusTold, WholeTensor

T = TypeVar("T")
MOST_TURNS = 60_000  # a run has 500 to 6,000
SECONDS_OF_A_TURN, SECONDS_OF_A_LOOK = 5e-5, 1e-6
CHANGES, CHANGED_BEFORE = 3, 3_000  # of priorities: how many, and before which turn
JUMP = 1000.0  # seconds by which the clock jumps
STAYS = 0.9  # the chance of the same rank, where the order is "near"


class TurnTaken(NamedTuple):
    """An entry of the trace; the rank is -1 for an event of the network."""

    rank: int
    what: str


class MarkPassed(NamedTuple):
    """A rank has passed a place in the program, before this turn."""

    turn: int
    rank: int
    mark: str


class AtStep(NamedTuple):
    """Something has happened to a rank that trains, when it had made so many steps."""

    rank: int
    step: int


class Suspends(Protocol):
    """What a rank trains with: it may be suspended, and tells how many steps it has made."""

    def suspend(self) -> None: ...

    def steps_made(self) -> int | None: ...


class NetworkEvent(NamedTuple):
    """What happens when the network gets a turn."""

    what: str
    happen: Callable[[], object]


def always() -> bool:
    return True


class DelayedCall(Generic[T]):
    """Stands for the Future of a helper thread: the call is made at the last of so many polls."""

    def __init__(self, f: Callable[[], T], polls: int) -> None:
        self._f, self._left = f, polls
        self._future = Future[T]()

    def done(self) -> bool:
        self._left -= 1
        if self._left == -1:
            try:
                self._future.set_result(self._f())
            except Exception as error:
                self._future.set_exception(error)
        return self._left < 0

    def result(self) -> T:
        return self._future.result()


class SimulatedScheduler:
    """Gives turns to ranks and to the network; also the time and the helper threads of ranks.

    trace    all turns
    marks    the marks that ranks have passed, their deaths as "dies", and that a message is lost
    counts   the operations of each rank
    asked    by rank: what SIGTERM suspends
    stops    where SIGTERM has arrived
    jumps    where the clock has jumped
    changed  the sends of which bytes have changed before they were complete
    told     what ranks told of themselves in recoveries
    tensors  of the whole model, by path
    lock     guards nothing: the rank that has the turn is alone
    pending  False while the hub looks for a deadlock: no rank can go on, and no event is left
    """

    def __init__(self, case: Case, size: int) -> None:
        self.case, self.size, self.decisions = case, size, Decisions(case.seed, case.drawn)
        self.lock, self.pending = nullcontext(), True
        self.trace, self.marks = list[TurnTaken](), list[MarkPassed]()
        self.counts, self.asked = [0] * size, dict[int, Suspends]()
        self.stops, self.jumps = list[AtStep](), list[AtStep]()
        self._beginning = threading.Lock()
        self._go = [threading.Lock() for _ in range(size)]  # held, but for a moment by a handover
        for go in self._go:
            go.acquire()
        self._last, self._polls = 0, False  # who has or had the turn, and tested in vain
        self._may_go = dict[int, Callable[[], bool]]()  # of ranks that are at an operation
        self._blocked = set[int]()  # those of them that may not, until they are woken
        self._events = list[NetworkEvent]()
        self._facts, self._buffered = set[tuple[str, int]](), list[tuple[int, PostedMessage]]()
        self._passed = dict[tuple[int, str], int]()
        self._due = defaultdict[tuple[int, int], list[Callable[[int], None]]](list)
        self._sleeper, self._sleeps_until = -1, 0
        self._sums = dict[PostedMessage, int]()  # of sends that are not complete
        self.changed = list[str]()
        self.told, self.tensors = list[StatusTold](), dict[str, WholeTensor]()
        drawn = self.decisions.random
        self._priorities = drawn.sample(range(100, 100 + size), size)
        self._changes = {drawn.randrange(CHANGED_BEFORE) for _ in range(CHANGES)}
        self._now = 0.0

    def clock(self) -> float:
        """Seconds that pass with turns, and a little with each look."""
        self._now += SECONDS_OF_A_LOOK
        return self._now

    def sleep(self, seconds: float) -> None:
        """Lets seconds pass."""
        self._now += seconds

    def in_thread(self, f: Callable[[], T]) -> "DelayedCall[T]":
        """A call that is done at a poll that is decided."""
        return DelayedCall(f, self.decisions.draw(self.case.longest))

    def mark(self, name: str, rank: int) -> None:
        """Records that a rank passes a mark, from which its faults may count."""
        nth = self._passed[rank, name] = self._passed.get((rank, name), 0) + 1
        self.marks.append(MarkPassed(len(self.trace), rank, name))
        asleep = (self.case.asleep,) if self.case.asleep else ()
        for faults, act in (
            (self.case.signals, self._signal),
            (self.case.kills, self._die),
            (self.case.jumps, self._jump),
            (asleep, self._fall_asleep),
        ):
            for fault in faults:
                if (fault.rank, fault.mark, fault.nth) == (rank, name, nth):
                    self._due[rank, self.counts[rank] + fault.after].append(act)
        self._carry_out(rank)

    # ---- called by the hub, under the lock

    def begin(self, rank: int, hub: Hub) -> None:
        """Returns when the thread of a rank may begin: even first lines run one after another."""
        HERE.set(Here(self, rank))
        with self._beginning:
            self._hub = hub
            self.mark("start", rank)
            self._may_go[rank] = always
            if len(self._may_go) == self.size:
                self._go[self._choose()].release()
        self._go[rank].acquire()

    def turn(self, rank: int, verb: str, requests: Sequence[Any]) -> None:
        """Waits for the turn of a rank, and carries out the faults that are due."""
        self._take_turn(rank)
        labels = ", ".join(request.label for request in requests[:2])
        self.trace.append(TurnTaken(rank, f"{verb} {labels}"))
        self._polls = verb == "tests" and not all(request.done for request in requests)
        if len(self.trace) >= MOST_TURNS:
            self._hub.abort(f"no end after {MOST_TURNS:,} turns")
        self.counts[rank] += 1
        self._carry_out(rank)
        if verb == "posts" and requests[0].sends:
            self._sums[requests[0]] = crc32(requests[0].data)

    def wait(self, rank: int, is_over: Callable[[], bool]) -> None:
        """Waits until it is over, and the rank has a turn."""
        while not is_over():
            self._take_turn(rank, is_over)
            self.trace.append(TurnTaken(rank, "has waited"))

    def wake(self, ranks: Iterable[int]) -> None:
        """Lets the next choice look at these ranks again."""
        self._blocked.difference_update(ranks)

    def buffers(self, message: PostedMessage) -> bool:
        """True if a send is complete before its receive is posted."""
        is_buffered = self.decisions.happens(self.case.buffered)
        if is_buffered:
            self._buffered.append((self._last, message))
        return is_buffered

    def deliver(
        self, source: PostedMessage, into: PostedMessage, complete: Callable[[], object]
    ) -> None:
        """Completes a message now, or when the network gets a turn."""
        if self.decisions.happens(self.case.late):
            arrive = lambda: self._arrive(source, into, complete)  # noqa: E731
            self._events.append(NetworkEvent(f"{source.label} arrives", arrive))
        else:
            self._arrive(source, into, complete)

    def notify(self, rank: int, fact: tuple[str, int], notice: Callable[[], object]) -> None:
        """Lets a rank notice a loss now, or when the network gets a turn."""
        self._facts.add(fact)
        if rank != self._last and (
            rank in self.case.slow or self.decisions.happens(self.case.unnoticed)
        ):
            self._events.append(NetworkEvent(f"rank {rank} notices {fact}", notice))
        else:
            notice()

    def end(self, rank: int) -> None:
        """Passes on the turn of a rank that has ended."""
        if self._may_go:
            self._go[self._choose()].release()

    # ---- what happens

    def _carry_out(self, rank: int) -> None:
        """Carries out the faults of a rank that are due."""
        for act in self._due.pop((rank, self.counts[rank]), ()):
            act(rank)

    def _signal(self, rank: int) -> None:
        if rank in self.asked:
            self.trace.append(TurnTaken(rank, "gets SIGTERM"))
            self._note(rank, self.stops)
            self.asked[rank].suspend()

    def _jump(self, rank: int) -> None:
        self.trace.append(TurnTaken(rank, "sees the clock jump"))
        self._now += JUMP
        self._note(rank, self.jumps)

    def _note(self, rank: int, places: list[AtStep]) -> None:
        if rank in self.asked and (step := self.asked[rank].steps_made()) is not None:
            places.append(AtStep(rank, step))

    def _fall_asleep(self, rank: int) -> None:
        assert self.case.asleep is not None
        self._sleeper, self._sleeps_until = rank, len(self.trace) + self.case.asleep.turns

    def _die(self, rank: int) -> None:
        """Kills a rank; what it has sent, and nobody has received, may be lost with it."""
        self.trace.append(TurnTaken(rank, f"DIES at its operation {self.counts[rank]}"))
        self.marks.append(MarkPassed(len(self.trace), rank, "dies"))
        for sender, message in self._buffered:
            is_kept = sender != rank or self.case.ghost >= 1
            if not is_kept and self.decisions.happens(self.case.buffered):
                self.marks.append(MarkPassed(len(self.trace), rank, "loses a message"))
                message.done = False
        self._hub.lose(rank)

    def _arrive(
        self, source: PostedMessage, into: PostedMessage, complete: Callable[[], object]
    ) -> None:
        """Completes a message. If a rank was lost meanwhile, or the Comm revoked, it does not
        arrive, but its data may be written."""
        (sender,), (receiver,) = into.awaited, source.awaited
        if (
            ("revoked", source.era) in self._facts
            or ("lost", receiver) in self._facts
            or (("lost", sender) in self._facts and not source.done)
        ):
            fits = into.data.size == source.data.size
            if fits and self.decisions.happens(self.case.ghost):
                into.data[...] = source.data
        else:
            if (sender, source) in self._buffered:
                self._buffered.remove((sender, source))
            elif crc32(source.data) != self._sums.pop(source):
                self.changed.append(f"rank {sender}: {source.label}")
            complete()

    # ---- whose turn it is

    def _take_turn(self, rank: int, may_go: Callable[[], bool] = always) -> None:
        """Returns when this rank may go on, and has a turn."""
        self._may_go[rank] = may_go
        chosen = self._choose()
        if chosen != rank:
            self._go[chosen].release()
            self._go[rank].acquire()

    def _choose(self) -> int:
        """The rank that has the next turn, after as many events of the network as are decided."""
        while True:
            options = self._options()
            if not options:
                self._end_deadlock()
                continue
            chosen = self._chosen(options) if len(options) > 1 else options[0]
            self._polls = False
            if isinstance(chosen, int):
                del self._may_go[chosen]
                self._last = chosen
                self._now += SECONDS_OF_A_TURN
                return chosen
            self._events.remove(chosen)
            self.trace.append(TurnTaken(-1, chosen.what))
            chosen.happen()
            self._blocked.clear()

    def _options(self) -> list[int | NetworkEvent]:
        """Who may have the next turn, the dullest choice first: the rank that had the last one,
        unless it polls."""
        ready = list[int | NetworkEvent]()
        for rank in (*range(self._last, self.size), *range(self._last)):
            if rank in self._may_go and rank not in self._blocked:
                if self._may_go[rank]():
                    ready.append(rank)
                else:
                    self._blocked.add(rank)
        if len(self.trace) < self._sleeps_until and len(ready) + len(self._events) > 1:
            ready = [rank for rank in ready if rank != self._sleeper]
        if self._polls:
            return [*self._events, *ready[1:], *ready[:1]]
        return [*ready, *self._events]

    def _chosen(self, options: Sequence[int | NetworkEvent]) -> int | NetworkEvent:
        order, drawn = self.case.order, self.decisions.random
        if order == "near" and drawn.random() < STAYS:
            return options[self.decisions.draw(len(options), 0)]
        if order != "priority":
            return options[self.decisions.draw(len(options))]
        if self._polls or len(self.trace) in self._changes:
            self._priorities[self._last] = -len(self.trace)
        of_options = [
            self._priorities[option] if isinstance(option, int) else drawn.choice((-1e9, 50, 1e9))
            for option in options
        ]
        return options[self.decisions.draw(len(options), of_options.index(max(of_options)))]

    def _end_deadlock(self) -> None:
        """Lets the hub end the job, and with it the waits of all ranks."""
        self.pending = False
        self._hub.look_for_deadlock()
        self.pending = True
        if self._blocked >= self._may_go.keys():
            self._hub.abort("no rank can go on")


class Here(NamedTuple):
    """The scheduler and the rank of a thread."""

    scheduler: SimulatedScheduler
    rank: int


HERE: ContextVar[Here | None] = ContextVar("here", default=None)
