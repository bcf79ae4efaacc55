"""Operations that are under way, and the one place that pushes all of them forward."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nnmpi.comm.allreduce.interpreter import LATER, Steps
from nnmpi.comm.debug.call_log import Call, Guard
from nnmpi.comm.transport.base import Request, Transport

RECENT = 1.0  # seconds: a work polled in vain since then is being waited for


class Progress:
    """The operations of one rank that are not complete, over all its communicators.

    None of them moves by itself. So whoever waits for one pushes all: else two ranks that wait for
    two operations in different orders would wait for ever.

    Only the rank's own thread begins works. Others may help to push them: whatever moves a work, or
    posts a message while there are works, holds the lock. Where there is none, nobody else moves.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.works: list[Work] = []
        self.lock = threading.RLock()
        self._wakes: list[threading.Event] = []
        self._missed: BaseException | None = None  # raised in another thread

    @property
    def idle(self) -> bool:
        return not self.works

    def finish(self, steps: Steps, call: Call, transport: Transport) -> None:
        """Does a whole operation."""
        if self._missed is not None:
            self.tell()
        if self.works:
            Work(steps, transport, self, call).wait()
            return
        self.guard.enter(call)
        try:
            for needs in steps:  # nothing else is under way, so the library may block
                if needs:
                    transport.wait(needs)
        finally:
            self.guard.leave()

    def add(self, work: "Work") -> None:
        """From here on it is under way."""
        self.works.append(work)
        for wake in self._wakes:
            wake.set()

    def poll(self) -> None:
        """Pushes everything forward as far as it goes, unless a helper is just doing it."""
        self.tell()
        if not self.lock.acquire(blocking=False):
            time.sleep(0)  # or the helper could not go on
            return
        try:
            self._push()
        finally:
            self.lock.release()

    def help(self) -> None:
        """The same from another thread; what goes wrong is kept for the rank's own."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            self._push()
        except BaseException as error:
            self._missed = self._missed or error
        finally:
            self.lock.release()

    def tell(self) -> None:
        """Raises what a helper has met with."""
        if self._missed is not None:
            with self.lock:
                missed, self._missed = self._missed, None
            raise missed

    def told(self, error: BaseException) -> None:
        """It is raised by the work that failed."""
        with self.lock:  # a helper that has ended the work has kept the error too by then
            if self._missed is error:
                self._missed = None

    @contextmanager
    def woken(self, wake: threading.Event) -> Iterator[None]:
        """Inside, the event is set whenever a work begins."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)

    def _push(self) -> None:
        for work in tuple(self.works):
            work.push()

    def waiting(self) -> tuple[Call, float] | None:
        """What holds this rank up, and for how many seconds: a call, or a work it polls in vain."""
        now = time.monotonic()
        polled = [w for w in tuple(self.works) if w.polled > now - RECENT]
        vain = min(polled, key=lambda w: w.since, default=None)
        return self.guard.waiting() or (None if vain is None else (vain.call, now - vain.since))


class Work:
    """An operation that was started: `poll` asks whether it is complete, `wait` completes it.

    Both push everything forward that is under way on this rank.
    """

    def __init__(self, steps: Steps, transport: Transport, progress: Progress, call: Call) -> None:
        self.call = call
        self._steps, self._transport, self._progress = steps, transport, progress
        self._needs: list[Request] | None = None
        self._error: BaseException | None = None
        self.done = False
        self.polled, self.since = -math.inf, math.inf  # the last poll in vain, and the first
        progress.guard.enter(call)
        try:
            with progress.lock:
                progress.add(self)
                self._advance()
        finally:
            progress.guard.leave()

    def poll(self) -> bool:
        """Whether it is complete; never blocks."""
        self._progress.poll()
        if not self.done:
            self.polled = time.monotonic()
            self.since = min(self.since, self.polled)
        self._raise()
        return self.done

    def push(self) -> None:
        """Goes on as far as it can without waiting; under the lock of the progress."""
        while not self.done and not (self._needs and not self._test()):
            self._advance()
            if self._needs is LATER:
                return

    def wait(self) -> None:
        """Until it is complete."""
        self._progress.guard.enter(self.call)
        try:
            while not self.done:
                if not self._waited():
                    time.sleep(0)  # lets other ranks and threads on this core have their turn
        finally:
            self._progress.guard.leave()
        self._raise()

    def _waited(self) -> bool:
        """Pushes everything, or waits for one step of this if there is nothing else."""
        progress = self._progress
        with progress.lock:  # a helper leaves everything to this thread meanwhile
            if self._needs and len(progress.works) == 1:
                progress.tell()
                self._advance(blocks=True)
                return True
            progress.poll()
            return False

    def _raise(self) -> None:
        if self._error is not None:
            self._progress.told(self._error)
            raise self._error

    def _test(self) -> bool:
        try:
            return self._transport.test(self._needs or ())
        except BaseException as error:
            self._end(error)
            raise

    def _advance(self, blocks: bool = False) -> None:
        """One step on, for which all that it needs is there, or is waited for."""
        try:
            if blocks:
                self._transport.wait(self._needs or ())
            self._needs = next(self._steps)
            self.since = math.inf
        except StopIteration:
            self._end()
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException | None = None) -> None:
        self._needs, self._error = LATER, error
        self._progress.works.remove(self)
        self.done = True  # last: whoever sees it need not ask for the lock
