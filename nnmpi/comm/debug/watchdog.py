"""A thread beside each rank that ends the job where ranks would wait for ever.

ask      a rank has waited for longer than NNMPI_TIMEOUT: who are you, and what do you wait for?
record   the answer; who has asked prints all of them and ends the job
left     a rank has come to its end, before the others
waits    to a rank that has left: I wait for what you will never do; it says so and ends the job

Nothing is sent while all goes well, except that ranks wait for each other at the end: MPI lets no
rank go before all are there, and would keep them waiting without a word.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from nnmpi.comm.debug.call_log import Call
from nnmpi.comm.debug.record import Record, report
from nnmpi.comm.progress.work import Progress

TICK = 0.25  # seconds between two looks
ANSWER = 1.0  # seconds in which others answer
QUIET = 0.25  # seconds that a rank waits at its end before it tells the others
PATIENCE = 0.5  # seconds for which a message may be under way from a rank that has left
GRACE = 1.0  # seconds that others get to end too, when one ends with an error

ASK, RECORD, LEFT, WAITS = b"?", b"r", b"l", b"w"


class Control(Protocol):
    """Messages between watches, which meet no others."""

    rank: int
    peers: Sequence[int]  # the other ranks; none where it cannot talk to them

    def send(self, message: bytes, to: int) -> None: ...

    def poll(self) -> tuple[int, bytes] | None:
        """A message that has arrived, and from whom."""

    def meet(self) -> Callable[[], bool]:
        """Says that this rank is here; what it returns tells whether all are."""

    def abort(self, message: str, status: int = 1) -> None:
        """Prints the message and ends the job."""


class Watch:
    """The thread of one rank; `progress` is what it watches."""

    def __init__(self, control: Control, progress: Progress) -> None:
        self._control, self._progress, self._guard = control, progress, progress.guard
        self._timeout = progress.guard.settings.timeout
        self._main = threading.get_ident()
        self._ends, self._status = threading.Event(), 0
        self._left: dict[int, tuple[Record, float]] = {}  # and when it was heard
        self._answers: dict[int, Record] = {}
        self._asked = False
        self._due = 0.0  # when to report, or, before it has asked, the earliest time to ask
        self._thread = threading.Thread(target=self._run, name="nnmpi watch", daemon=True)
        self._thread.start()

    def leave(self, status: int) -> None:
        """Returns when all ranks have called it, or ends the job. `status`: how this rank ends."""
        self._status = status
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(min(TICK, self._timeout / 4)):
            self._look()
        self._wait_for_all()

    def _look(self) -> None:
        for source, message in self._messages():
            self._take(source, message[:1], message[1:])
        waiting = None if self._ends.is_set() else self._progress.waiting()
        if waiting is not None:
            self._overdue(*waiting)
            self._deserted(*waiting)
        late = waiting is not None and waiting[1] > self._timeout
        self._asked = self._asked and late  # whoever was missing has come after all
        complete = len(self._answers) == len(self._control.peers)
        if self._asked and (complete or time.monotonic() > self._due):
            self._report()

    def _overdue(self, call: Call, seconds: float) -> None:
        """Asks all others once this rank has waited for too long, unless one of them has asked."""
        if seconds > self._timeout and not self._asked and time.monotonic() > self._due:
            self._asked, self._due = True, time.monotonic() + ANSWER
            self._answers.clear()
            self._send_all(ASK)

    def _deserted(self, call: Call, seconds: float) -> None:
        """Tells a rank that has left if this one waits for it."""
        for r, (record, heard) in self._left.items():
            known = min(seconds, time.monotonic() - heard)
            if known > PATIENCE and self._lost(call, r, record):
                self._control.send(WAITS + str(call).encode(), r)
                return

    def _lost(self, call: Call, r: int, record: Record) -> bool:
        """Whether r, which has left, takes part in the call and will not do what it has to."""
        return r in self._guard.partners(call) and not record.joins(call)

    def _take(self, source: int, kind: bytes, text: bytes) -> None:
        if kind == ASK:
            left = self._ends.is_set()
            record = Record.of(self._progress, self._main, left)
            self._control.send(RECORD + record.encoded(), source)
            if not self._asked or source < self._control.rank:  # let it report, if it can
                self._asked, self._due = False, time.monotonic() + 3 * ANSWER
        elif kind == RECORD:
            self._answers[source] = Record.decoded(text)
        elif kind == LEFT:
            self._left[source] = (Record.decoded(text), time.monotonic())
        elif self._ends.is_set():
            calls = self._progress.guard.last()
            last = f"after {calls[-1]}" if calls else "without any call"
            self._control.abort(
                f"rank {self._control.rank} has left {last}, "
                f"but rank {source} waits for it in {text.decode()}",
                self._status or 1,
            )

    def _report(self) -> None:
        me, own = self._control.rank, Record.of(self._progress, self._main)
        if own.waits is not None:
            records = {r: self._answers.get(r) for r in self._control.peers}
            text = report({**records, me: own}, me, own.waits, self._guard.partners(own.waits))
            self._control.abort(text)

    def _wait_for_all(self) -> None:
        """Waits at the end of this rank, without using the processor that others may need."""
        if self._status and not self._control.peers:
            self._failed()
        started, told, pause = time.monotonic(), False, 0.001
        all_here = self._control.meet()
        while not all_here():
            self._look()
            waited = time.monotonic() - started
            if waited > QUIET and not told:
                told = True
                self._send_all(LEFT + Record.of(self._progress, self._main, True).encoded())
            if waited > GRACE and self._status:
                self._failed()
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        for _ in self._messages():
            pass  # nobody is left to whom they matter

    def _failed(self) -> None:
        message = f"rank {self._control.rank} has ended with exit status {self._status}"
        self._control.abort(message, self._status)

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        while (message := self._control.poll()) is not None:
            yield message

    def _send_all(self, message: bytes) -> None:
        for r in self._control.peers:
            self._control.send(message, r)


def join(
    threads: Sequence[threading.Thread],
    ranks: Sequence[Progress],
    abort: Callable[[str], None],
) -> None:
    """Waits for ranks that are threads. One that waits for too long ends all, with a report.

    A thread cannot be stopped: one that never comes back is left behind.
    """
    timeout = ranks[0].guard.settings.timeout
    tick = min(TICK, timeout / 4) if timeout < threading.TIMEOUT_MAX else None
    until = None
    while any(t.is_alive() for t in threads) and (until is None or time.monotonic() < until):
        for thread in threads:
            thread.join(tick)
        text = "" if until else _late(threads, ranks, timeout)
        if text:
            abort(text)
            until = time.monotonic() + ANSWER


def _late(threads: Sequence[threading.Thread], ranks: Sequence[Progress], timeout: float) -> str:
    """The report, if a rank has waited for too long."""
    waiting = ((r, rank.waiting()) for r, rank in enumerate(ranks))
    late = next(((r, w[0]) for r, w in waiting if w is not None and w[1] > timeout), None)
    if late is None:
        return ""
    records = {
        r: Record.of(ranks[r], thread.ident or 0, not thread.is_alive())
        for r, thread in enumerate(threads)
    }
    return report(records, *late, ranks[late[0]].guard.partners(late[1]))
