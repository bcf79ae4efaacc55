"""Finding and killing a rank that is silent, where the job goes on without it.

rank 0   waits ........ for longer than the limit: ask ──► answers: 1 waits, 3 waits, 2 nothing
rank 1   waits ........ answer                                          │
rank 2   stopped                                                        ▼  SIGKILL
rank 3   waits ........ answer ◄── on the host of rank 2: end it ───────┘

A rank is silent if it does not answer in time, or if it has only computed for longer than the
limit: it has made no call, and waits in none. Of those that wait, the first one has it killed. A
rank that has come to its end waits for the others.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.progress import Progress
from nnmpi.comm.stderr import print_error

if TYPE_CHECKING:  # an import starts MPI
    from nnmpi.comm.transport.mpi_job import MPIChannel

TIME_TO_ANSWER = 1.0  # seconds, at least
PART_TO_ANSWER = 0.1  # of the limit: a call outside Python may keep a watchdog from answering
TIME_TO_VANISH = 10.0  # seconds in which MPI notices that a rank was killed
ASK, ANSWER, END = "ask", "answer", "end"


class Silence:
    """The silent ranks that a watchdog knows of; `tell` sends a message to another rank."""

    def __init__(
        self, rank: int, progress: Progress, tell: Callable[[int, str, object], None]
    ) -> None:
        self._rank, self._progress, self._tell = rank, progress, tell
        self.at_end = False  # of this rank
        self._sign: object = None
        self._last = time.monotonic()  # when this rank last gave a sign of life
        self._asked = -math.inf  # when this rank asked the others
        self._computed: dict[int, float] = {}  # seconds for which others say that they compute
        self._killed: dict[int, float] = {}  # when

    def look(self) -> None:
        """Sees whether this rank has made a call, or waits; to be called again and again."""
        log = self._progress.log
        sign = log.records[-1] if log.records else None
        if sign is not self._sign or self._waits():
            self._sign, self._last = sign, time.monotonic()

    def hear(self, source: int, kind: str, value: float) -> None:
        """A message of another rank about silence."""
        if kind == ASK:
            self.look()
            self._tell(source, ANSWER, 0.0 if self._waits() else time.monotonic() - self._last)
        elif kind == ANSWER:
            self._computed[source] = value
        else:
            end(int(value))

    def _waits(self) -> bool:
        return self.at_end or self._progress.waiting() is not None

    def is_ended(self, channel: "MPIChannel", reason: str, limit: float) -> bool:
        """Has silent ranks killed; False where that is no remedy, since all wait for each other.

        To be called again and again while this rank waits for longer than the limit.
        """
        now, others = time.monotonic(), channel.left()
        patience = max(TIME_TO_ANSWER, PART_TO_ANSWER * limit)
        if now - self._asked > 2 * patience:  # never, or for an earlier wait, which has ended
            self._asked = now
            self._computed.clear()
            for r in others:
                self._tell(r, ASK, None)
            return True
        if not self._computed.keys() >= {*others} and now - self._asked < patience:
            return True
        self._asked = -math.inf
        silent = [r for r in others if self._computed.get(r, math.inf) > limit]
        waiting = [r for r in others if self._computed.get(r) == 0.0]
        if not silent:
            return len(waiting) < len(others)
        if min(waiting, default=self._rank) < self._rank:
            return True  # that one has it done
        if any(now - self._killed.get(r, now) > TIME_TO_VANISH for r in silent):
            return False  # it has ended by itself, in a way that MPI does not notice
        new = [r for r in silent if r not in self._killed]
        self._killed |= dict.fromkeys(new, now)
        reason = f"{reason} for longer than NNMPI_TIMEOUT={limit:g} s"
        return not new or self._end_all(new, channel, reason)

    def _end_all(self, silent: list[int], channel: "MPIChannel", reason: str) -> bool:
        """Has these ranks killed; returns whether each has a rank beside it that can."""
        here = sorted({self._rank, *self._computed} - {*self._killed})
        print_error(
            f"rank {self._rank} waits {reason}; {name_ranks(silent)} "
            f"{'is' if len(silent) == 1 else 'are'} silent, and killed"
        )
        for r in silent:
            host, process = channel.processes[r]
            beside = [q for q in here if channel.processes[q][0] == host]
            if not beside:
                return False
            if self._rank in beside:
                end(process)
            else:
                self._tell(beside[0], END, process)
        return True


def end(process: int) -> None:
    """Kills a process of this host."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
