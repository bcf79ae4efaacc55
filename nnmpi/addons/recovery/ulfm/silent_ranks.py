"""Finds and kills silent ranks in a job that continues without them.

    rank 0   waits ..... for longer than the limit: ask ──► answers: 1 waits, 3 waits, 2 nothing
    rank 1   waits ..... answer                                          │
    rank 2   stopped ◄───── SIGKILL ─────┐                               │
    rank 3   waits ..... answer          └── on the host of rank 2 ◄─────┘

A rank is silent if it does not answer in time, or if it has neither made a call nor waited in one
for longer than the limit. Of the ranks that wait, the one with the lowest number has silent ranks
killed. A rank that has reached its end counts as waiting.
"""

import math
import os
import signal
import time
from contextlib import suppress

from nnmpi.addons.recovery.ulfm.channel import UlfmChannel
from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.debug.watchdog import Watchdog
from nnmpi.comm.stderr import print_error

TIME_TO_ANSWER = 1.0  # seconds, at least
PART_TO_ANSWER = 0.1  # of the limit: a long call outside Python may delay a watchdog's answer
TIME_TO_VANISH = 10.0  # seconds in which MPI notices that a rank was killed
ASK, ANSWER, END = "ask", "answer", "end"


class SilentRankMonitor:
    """Finds silent ranks for a watchdog in a fault-tolerant job, and has them killed."""

    def __init__(self, watchdog: Watchdog, channel: UlfmChannel) -> None:
        self._watchdog, self._channel = watchdog, channel
        self._rank, self._send = watchdog.rank, watchdog.send
        self._last_record: object = None
        self._active_at = time.monotonic()  # when this rank last made a call or waited
        self._asked_at = -math.inf  # when this rank asked the others
        self._busy_seconds: dict[int, float] = {}  # how long others have computed; 0 if they wait
        self._killed_at: dict[int, float] = {}

    def note_activity(self) -> None:
        """Records the time if this rank waits, or has made a call since the last time. The watchdog
        calls it repeatedly."""
        records = self._watchdog.progress.log.records
        record = records[-1] if records else None
        if record is not self._last_record or self._watchdog.waits():
            self._last_record, self._active_at = record, time.monotonic()

    def receive(self, source: int, kind: str, value: float) -> None:
        """Handles a message of the monitor of rank `source`, by its `kind`: a question whether this
        rank waits; an answer, whose `value` is how many seconds that rank has computed, 0 if it
        waits; or a request to kill the process `value` on this host."""
        if kind == ASK:
            self.note_activity()
            waits = self._watchdog.waits()
            self._send(source, ANSWER, 0.0 if waits else time.monotonic() - self._active_at)
        elif kind == ANSWER:
            self._busy_seconds[source] = value
        else:
            kill_process(int(value))

    def kill(self, reason: str, limit: float) -> bool:
        """Has silent ranks killed and returns True; returns False if all ranks wait, or killing is
        impossible.

        The watchdog calls it repeatedly while this rank has waited for longer than `limit` seconds;
        `reason` is for the message. The first call asks the other ranks; later calls evaluate their
        answers.
        """
        now, others = time.monotonic(), self._channel.left()
        answer_time = max(TIME_TO_ANSWER, PART_TO_ANSWER * limit)
        if now - self._asked_at > 2 * answer_time:  # not asked, or during an earlier wait
            self._asked_at = now
            self._busy_seconds.clear()
            for r in others:
                self._send(r, ASK, None)
            return True
        if not self._busy_seconds.keys() >= {*others} and now - self._asked_at < answer_time:
            return True
        self._asked_at = -math.inf
        silent = [r for r in others if self._busy_seconds.get(r, math.inf) > limit]
        waiting = [r for r in others if self._busy_seconds.get(r) == 0.0]
        if not silent:
            return len(waiting) < len(others)
        if min(waiting, default=self._rank) < self._rank:
            return True  # the waiting rank with the lowest number acts
        if any(now - self._killed_at.get(r, now) > TIME_TO_VANISH for r in silent):
            return False  # it is gone, but in a way that MPI does not notice
        new = [r for r in silent if r not in self._killed_at]
        self._killed_at |= dict.fromkeys(new, now)
        reason = f"{reason} for longer than NNMPI_TIMEOUT={limit:g} s"
        return not new or self._kill(new, reason)

    def _kill(self, silent: list[int], reason: str) -> bool:
        """Has the ranks `silent` killed, each by a rank on its host; returns False if on the host
        of one of them no rank can do it. `reason` is for the message."""
        processes = self._channel.processes
        here = sorted({self._rank, *self._busy_seconds} - {*self._killed_at})
        print_error(
            f"rank {self._rank} has waited {reason}; {name_ranks(silent)} "
            f"{'is' if len(silent) == 1 else 'are'} silent and will be killed"
        )
        for r in silent:
            host, process = processes[r]
            beside = [q for q in here if processes[q][0] == host]
            if not beside:
                return False
            if self._rank in beside:
                kill_process(process)
            else:
                self._send(beside[0], END, process)
        return True


def kill_process(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
