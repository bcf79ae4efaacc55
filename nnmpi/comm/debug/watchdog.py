"""The watchdog: a thread beside each rank that ends the job when ranks would wait for ever.

It handles these cases:

warning  a rank has waited for a minute: it prints the call it waits in, once
report   a rank has waited for longer than NNMPI_TIMEOUT, in a call or at its end (or for the start,
         by default 5 minutes): it prints its call and stack, asks the other ranks for theirs, and
         then ends the job
differs  a rank has waited for a second, and another one has made another call in its place: the
         ranks send each other their last calls, and a line names both
left     a rank has reached its end; another rank that waits for it, in a collective or for its
         message, ends the job
failed   an exception ends a rank; if several ranks fail, the first one prints its exception
silent   in a fault-tolerant job, a rank for which others wait longer than NNMPI_TIMEOUT is killed,
         and the job continues: see `SilentRanks`

Watchdogs send nothing while no rank waits for long, except that ranks wait for each other at the
end: MPI_Finalize would do so silently, and would not notice that a rank waits for one that has
left.
"""

import json
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nnmpi.comm.call_log import LoggedCall
from nnmpi.comm.debug.compare import difference, first_difference, name_ranks
from nnmpi.comm.debug.exit_hooks import Failures, JobEnd
from nnmpi.comm.debug.start_limit import stopped_ranks
from nnmpi.comm.debug.waiting_ranks import LONG_WAIT, PATIENCE, TICK, TIME_TO_REPORT, report, warn
from nnmpi.comm.progress import Progress
from nnmpi.comm.stderr import print_error

if TYPE_CHECKING:  # an import starts MPI
    from nnmpi.comm.transport.mpi_job import MPIChannel

TIME_TO_END = 0.25  # seconds that a rank waits at its end before it tells the others
IN_FLIGHT = 0.5  # seconds for which a message from a departed rank may still be in flight
TIME_TO_FAIL = 0.5  # seconds in which failing ranks learn of each other

# types of messages, beside those of SilentRanks
REPORT, LEFT, FAILED, CALLS, DIFFERS = "report", "left", "failed", "calls", "differs"
END = LoggedCall("world", 0, "end", "", None, 0, -1, "", 0)  # the wait of a rank at its end


class DepartedRank(NamedTuple):
    """The state of a rank at its end, from its last message to the watchdogs."""

    calls: dict[str, int]  # number of collectives that it has called, by communicator
    incomplete: list[list[object]]  # communicator and number of pending collectives
    last: str  # its last call, as text
    received: float  # when the message arrived

    def takes_part_in(self, call: LoggedCall) -> bool:
        """True if the departed rank has done its part of a collective; False for messages."""
        if call.number < 0 or [call.comm, call.number] in self.incomplete:
            return False
        return self.calls.get(call.comm, 0) >= call.number


class SilentRanks(Protocol):
    """Finds ranks that make no progress, and has them killed; the job continues."""

    def note_activity(self) -> None:
        """Records the time if this rank makes progress; called every TICK seconds."""

    def receive(self, source: int, kind: str, value: float) -> None:
        """Handles a message on silent ranks: its `kind`, and a number that depends on it."""

    def kill(self, reason: str, limit: float) -> bool:
        """Has the ranks that make no progress killed; returns False if that cannot help, as when
        all wait. Called every TICK seconds after this rank has waited for `limit`."""


class Watchdog:
    """A thread that watches the thread that creates it, and exchanges messages with other ranks'
    watchdogs, once `channel` is set."""

    def __init__(self, rank: int, progress: Progress, ending: JobEnd) -> None:
        self.rank, self.progress, self._ending = rank, progress, ending
        self.channel: MPIChannel | None = None  # to the other ranks, for which `leave` then waits
        self.silent_ranks: SilentRanks | None = None  # in a fault-tolerant job
        self._main, self._ended = threading.get_ident(), threading.Event()
        self._departed: dict[int, DepartedRank] = {}
        self._failed: dict[int, tuple[str, bool, bool]] = {}  # message, is first, follows
        self._asked = False  # in the present wait, for calls that differ
        self._differing: dict[int, tuple[LoggedCall, LoggedCall]] = {}  # this rank's, and theirs
        self._unanswered: dict[int, list[LoggedCall]] = {}  # calls of others, not made here yet
        self._lock = threading.Lock()  # guards the channel
        self._warned = self._reported = False
        self._thread = threading.Thread(target=self._run, name="nnmpi watchdog", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Waits until all other ranks end too, or the job; then stops the watchdog."""
        self._ended.set()
        self._thread.join()

    def waits(self) -> bool:
        """True if this rank waits in a call or at its end."""
        return self._ended.is_set() or self.progress.waiting() is not None

    def failures(self, message: str, follows: bool) -> Failures:
        """Tells the other ranks that this rank fails with `message`, unless that only `follows`
        from another rank's failure and the job ends anyway; returns the failures of others. Of
        ranks that fail at the same time, the lowest number counts as the first."""
        channel = self.channel
        if channel is None or self._ended.is_set() or (follows and not self._ending.fault_tolerant):
            return Failures(is_first=not follows)
        self._receive()
        is_first = not (self._failed or follows)
        self._send_all(FAILED, message, is_first, follows)
        until = time.monotonic() + TIME_TO_FAIL
        while time.monotonic() < until and not self._failed.keys() >= {*channel.left()}:
            time.sleep(0.01)
            self._receive()
        failed = dict(self._failed)  # a copy: the watchdog's thread may add to it
        others = {r: text for r, (text, _, follows) in sorted(failed.items()) if not follows}
        first = [r for r, (_, first, _) in failed.items() if first]
        is_first = is_first and self.rank < min(first, default=self.rank + 1)
        over = {*failed, *self._departed} >= {*channel.left()}
        return Failures(is_first, others, over)

    def _run(self) -> None:
        while not self._ended.wait(min(TICK, self.progress.log.settings.timeout / 4)):
            self._look()
        if self.channel is not None:
            self._wait_for_all(self.channel)

    def _look(self) -> None:
        self._receive()
        if self.silent_ranks is not None:
            self.silent_ranks.note_activity()
        waiting = self.progress.waiting()
        if waiting is None:
            self._asked = False
            return
        call, seconds = waiting
        self._check_for_calls_that_differ(call, seconds)
        self._check_for_ranks_that_left(call, seconds)
        settings = self.progress.log.settings
        limit = settings.start if call.operation == "world" else settings.timeout
        if seconds > limit:
            self._time_out(f"in {call}", call, limit)
        elif seconds > LONG_WAIT and not self._warned:
            self._warned = True
            warn(self.rank, call, seconds)

    def _receive(self) -> None:
        while (message := self._next()) is not None:
            source, (kind, *values) = message[0], json.loads(message[1])
            if kind == FAILED:
                text, is_first, follows = values
                self._failed[source] = text, is_first, follows
            elif kind == LEFT:
                calls, incomplete, last = values
                self._departed[source] = DepartedRank(calls, incomplete, last, time.monotonic())
            elif kind == REPORT:
                self._report(LoggedCall(*values))
            elif kind == CALLS:
                self._unanswered[source] = [LoggedCall(*call) for call in values]
            elif kind == DIFFERS:
                self._differing[source] = LoggedCall(*values[0]), LoggedCall(*values[1])
            elif self.silent_ranks is not None:
                self.silent_ranks.receive(source, kind, values[0])
        if self._unanswered:
            self._compare_calls()

    def _compare_calls(self) -> None:
        """Compares the calls of waiting ranks with this one's, and reports the first difference."""
        mine, counters = self.progress.last_calls(), self.progress.log.counters
        for source, calls in [*self._unanswered.items()]:
            if pair := first_difference(calls, mine):
                self.send(source, DIFFERS, *pair)
            ahead = [c for c in calls if c.comm in counters and c.number > counters[c.comm].calls]
            self._unanswered[source] = ahead
            if pair or not ahead:
                del self._unanswered[source]

    def _next(self) -> tuple[int, bytes] | None:
        with self._lock:
            return None if self.channel is None else self.channel.receive()

    def _time_out(self, reason: str, call: LoggedCall, limit: float) -> None:
        if self.silent_ranks is not None and self.silent_ranks.kill(reason, limit):
            return
        print_error(
            f"rank {self.rank} has waited for longer than NNMPI_TIMEOUT={limit:g} s {reason}; "
            "every rank reports, unless it is stopped, gone or in a long call outside Python"
            f"{stopped_ranks(os.getppid())}:"
        )
        self._report(None)
        self._send_all(REPORT, *call)
        time.sleep(TIME_TO_REPORT)
        self._ending.end_job(1)

    def _report(self, late: LoggedCall | None) -> None:
        if not self._reported:
            self._reported = True
            if self._ended.is_set():
                print_error(f"rank {self.rank} has reached its end {self._last_call()}")
            else:
                print_error(report(self.rank, self.progress, self._main, late))

    def _check_for_calls_that_differ(self, call: LoggedCall, seconds: float) -> None:
        """Ends the job with a message if this rank, which has waited in `call` for `seconds`, has
        called something else than another rank. Of these ranks the first one speaks."""
        if seconds < PATIENCE or not self._asked:
            self._differing.clear()
        self._asked = self._asked and seconds >= PATIENCE
        if not self._asked and seconds >= PATIENCE and self.channel is not None:
            self._asked = True
            for r in {*self.progress.log.participants(call)} & {*self.channel.left()}:
                self.send(r, CALLS, *self.progress.last_calls())
        for r, (called, other_call) in sorted(self._differing.items()):
            time.sleep(0 if self.rank < r else TIME_TO_REPORT)
            differ = difference({self.rank: called, r: other_call})
            print_error(f"rank {self.rank}: MismatchError: {differ}")
            self._ending.end_job(1)

    def _check_for_ranks_that_left(self, call: LoggedCall, seconds: float) -> None:
        """Ends the job if this rank, after `seconds` in `call`, waits for one that has left."""
        participants = self.progress.log.participants(call)
        for r, left in self._departed.items():
            known = min(seconds, time.monotonic() - left.received)
            if r in participants and known > IN_FLIGHT and not left.takes_part_in(call):
                print_error(
                    f"rank {self.rank} waits for rank {r} in {call}, "
                    f"but rank {r} has left {left.last}"
                )
                self._ending.end_job(1)

    def _wait_for_all(self, channel: "MPIChannel") -> None:
        """Waits at the end for all ranks; sleeps between polls, since others may need this core."""
        started, sent, pause = time.monotonic(), False, 0.001
        all_here = channel.ibarrier()
        while not all_here():
            self._receive()
            if not sent and time.monotonic() - started > TIME_TO_END:
                sent = True
                self._announce_departure()
            limit = self.progress.log.settings.timeout
            if time.monotonic() - started > limit:
                missing = [r for r in channel.left() if r not in self._departed]
                whom = name_ranks(missing) if missing else "another rank"
                self._time_out(f"at its end for {whom}", END, limit)
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        self._receive()  # MPI_Finalize requires that no message is pending

    def _announce_departure(self) -> None:
        log = self.progress.log
        calls = {name: counter.calls for name, counter in log.counters.items()}
        incomplete = [w.call[:2] for w in self.progress.works]
        self._send_all(LEFT, calls, incomplete, self._last_call())

    def _last_call(self) -> str:
        calls = self.progress.log.calls
        return f"after {calls[-1]}" if calls else "without any call"

    def _send_all(self, *message: object) -> None:
        for r in self.channel.left() if self.channel is not None else ():
            self.send(r, *message)

    def send(self, to: int, *message: object) -> None:
        """Sends a message to rank `to` as JSON: its type first, then its values."""
        assert self.channel is not None
        with self._lock:
            self.channel.send(json.dumps(message, default=str).encode(), to)
