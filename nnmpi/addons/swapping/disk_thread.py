"""DiskThread: a thread that writes the activations of pipeline stages to disk and reads them back,
in the order of its queue, and counts the bytes in memory.

The thread has no reference to the Swapper that uses it. So when the program drops a Swapper, it is
garbage collected, and its finalizer ends the thread.
"""

import threading
from collections import deque
from collections.abc import Callable

from nnmpi.addons.swapping.arena import Arena
from nnmpi.addons.swapping.placement import STATE, Placements, reserved


class DiskThread:
    """A thread that writes and reads, and the state that it shares with the thread that computes.

    change   the condition that guards the other fields; notified of changes
    jobs     the queue of jobs: ("write", "read" or "drop", a stage or STATE)
    loaded   stages (or STATE) that have been read and not used yet
    in_use   bytes in memory, or reserved for a job
    at       the stage whose backward pass is next
    """

    def __init__(self, plan: Placements, arena: Arena) -> None:
        self._plan, self._arena, self._last = plan, arena, len(plan.loads) - 1
        self._nbytes = {STATE: plan.state, **{s: u.nbytes for s, u in enumerate(plan.loads)}}
        self._longest = max(unit.input_bytes for unit in plan.loads)
        self.change = threading.Condition()
        self.jobs: deque[tuple[str, int]] = deque()
        self.loaded: set[int] = set()
        self.in_use, self.at = 0.0, self._last
        self._do = {"write": self._write_out, "read": self._read_in, "drop": self._drop}
        self._is_busy = self._is_ended = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="nnmpi-swap", daemon=True)
        self._thread.start()

    @property
    def limit(self) -> float:
        """The bytes that may be in memory at a time, with a margin for rounding."""
        return self._plan.memory * (1 + 1e-9)

    @property
    def spare(self) -> float:
        """The bytes that may stay in memory as pages of freed arrays, for reuse: what `limit`
        leaves, minus the length of the longest layer input. If a layer reads its own output in the
        backward pass, the output stays in memory one pass longer than the simulation counts it."""
        return max(self._plan.memory - self.in_use - self._longest, 0.0)

    def end(self) -> None:
        """Makes the thread end after its current job; any thread may call it."""
        with self.change:
            self._is_ended = True
            self.change.notify_all()

    def join(self) -> None:
        """Waits until the thread has ended."""
        self._thread.join()

    def add(self, *jobs: tuple[str, int]) -> None:
        """Appends jobs to the queue: ("write", "read" or "drop", a stage or STATE, the optimizer
        state). A drop writes pages that were read without a job to disk, and frees their memory."""
        with self.change:
            self.jobs.extend(jobs)
            self.change.notify_all()

    def write_state(self) -> None:
        """Queues the write of optimizer state, which counts until it is done."""
        with self.change:
            self.in_use += self._plan.state
            self.add(("write", STATE))

    def move_to(self, stage: int) -> None:
        """Tells the thread which stage's backward pass is next. The thread reads activations of
        further stages ahead of their passes, as far as memory allows."""
        with self.change:
            self.at = stage
            self.change.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until `ready()` is True; raises the exception of the thread if it has failed."""
        with self.change:
            self.change.wait_for(lambda: ready() or self._error is not None)
            if self._error is not None:
                raise self._error

    def reset(self) -> None:
        """Restores the initial state after an aborted step: forgets all activations, and writes the
        optimizer state again, of which it is not known which part is in memory."""
        with self.change:
            self.jobs.clear()
            self.in_use, self.at = 0.0, STATE  # gives a read that waits the room to finish
            self.change.notify_all()
            self.wait(lambda: not self._is_busy)
            self.loaded.clear()
            self.in_use, self.at = 0.0, self._last
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
            with self.change:  # raised by the next `wait` of the thread that computes
                self._error = error
                self.change.notify_all()

    def _drop(self, s: int) -> None:
        """Writes the blocks of stage s, or of STATE, and frees their memory, without a change of
        `in_use`: they were read without a job, such as optimizer state by a checkpoint."""
        self._arena.write_out(self._arena.blocks(s))

    def _write_out(self, s: int) -> None:
        self._drop(s)
        with self.change:
            self.in_use -= self._nbytes[s]
            self.change.notify_all()

    def _read_in(self, s: int) -> None:
        nbytes = self._nbytes[s]

        def has_room() -> bool:
            ahead = reserved(self._plan.loads, self._plan.choice, s, self.at)
            return self.in_use + nbytes + ahead <= self.limit

        with self.change:
            self.change.wait_for(lambda: has_room() or self._is_ended)
            self.in_use += nbytes  # reserved now: passes go on while the pages are read
            self._arena.trim(self.spare)
        self._arena.read_in(self._arena.blocks(s))
        with self.change:
            self.loaded.add(s)
            self.change.notify_all()
