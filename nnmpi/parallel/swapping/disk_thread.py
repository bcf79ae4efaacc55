"""Disk thread: writes and reads the activations of stages in order, and counts what is in memory.

It knows no swapper, so one that the program has dropped is garbage, and ends it.
"""

import threading
from collections import deque
from collections.abc import Callable

from nnmpi.parallel.arrangement.residence import STATE, Residences, reserved
from nnmpi.parallel.swapping.arena import Arena


class DiskThread:
    """A thread, and what it shares with the one that computes.

    change  is held by who reads or changes the others, and told of changes
    jobs    what is to be done: ("write", "read" or "drop", a stage or STATE)
    read    what has been read and not been needed yet
    held    bytes in memory, or promised to a job
    at      the stage whose backward pass is next
    """

    def __init__(self, plan: Residences, arena: Arena) -> None:
        self._plan, self._arena, self._last = plan, arena, len(plan.loads) - 1
        self._nbytes = {STATE: plan.state, **{s: u.nbytes for s, u in enumerate(plan.loads)}}
        self._longest = max(unit.input_bytes for unit in plan.loads)
        self.change = threading.Condition()
        self.jobs: deque[tuple[str, int]] = deque()
        self.read: set[int] = set()
        self.held, self.at = 0.0, self._last
        self._do = {"write": self._write_out, "read": self._read_in, "drop": self._drop}
        self._is_busy = self._is_ended = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="nnmpi-swap", daemon=True)
        self._thread.start()

    @property
    def limit(self) -> float:
        """The bytes that may be held, but for rounding."""
        return self._plan.memory * (1 + 1e-9)

    @property
    def spare(self) -> float:
        """The bytes of free memory that may keep their pages. An output that the unit before reads
        too is there a pass longer than it is held."""
        return max(self._plan.memory - self.held - self._longest, 0.0)

    def end(self) -> None:
        """The thread ends after what it is doing; any thread may call it."""
        with self.change:
            self._is_ended = True
            self.change.notify_all()

    def join(self) -> None:
        """Until it has ended."""
        self._thread.join()

    def add(self, *jobs: tuple[str, int]) -> None:
        """To be done after the others."""
        with self.change:
            self.jobs.extend(jobs)
            self.change.notify_all()

    def write_state(self) -> None:
        """Optimizer state is in memory, and is to be written."""
        with self.change:
            self.held += self._plan.state
            self.add(("write", STATE))

    def move_to(self, stage: int) -> None:
        """The backward pass of a stage is next."""
        with self.change:
            self.at = stage
            self.change.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Until it is so; raises what has gone wrong in the thread."""
        with self.change:
            self.change.wait_for(lambda: ready() or self._error is not None)
            if self._error is not None:
                raise self._error

    def start_again(self) -> None:
        """Forgets a step that was broken off: no activations are left, and optimizer state, if they
        are on disk between updates, are where nobody knows."""
        with self.change:
            self.jobs.clear()
            self.held, self.at = 0.0, STATE  # a read that waits has room
            self.change.notify_all()
            self.wait(lambda: not self._is_busy)
            self.read.clear()
            self.held, self.at = 0.0, self._last
            self.write_state()

    # ---- in the thread

    def _work(self) -> None:
        try:
            while True:
                with self.change:
                    self._is_busy = False
                    self.change.notify_all()
                    self.change.wait_for(lambda: self.jobs or self._is_ended)
                    if self._is_ended:
                        return
                    job, s = self.jobs.popleft()
                    self._is_busy = True
                self._do[job](s)
        except Exception as error:
            with self.change:
                self._error = error
                self.change.notify_all()

    def _drop(self, s: int) -> None:
        """Writes out pages read without being asked for, as optimizer state by a checkpoint."""
        self._arena.write_out(self._arena.blocks(s))

    def _write_out(self, s: int) -> None:
        self._drop(s)
        with self.change:
            self.held -= self._nbytes[s]
            self.change.notify_all()

    def _read_in(self, s: int) -> None:
        nbytes = self._nbytes[s]

        def has_room() -> bool:
            rest = reserved(self._plan.loads, self._plan.choice, s, self.at)
            return self.held + nbytes + rest <= self.limit

        with self.change:
            self.change.wait_for(lambda: has_room() or self._is_ended)
            self.held += nbytes
            self._arena.trim(self.spare)
        self._arena.read_in(self._arena.blocks(s))
        with self.change:
            self.read.add(s)
            self.change.notify_all()
