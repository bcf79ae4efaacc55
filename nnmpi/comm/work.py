"""Operations that are under way, and the one place that pushes all of them forward."""

import math
import time

from nnmpi.comm.base import Request, Transport
from nnmpi.comm.guard import Call, Guard
from nnmpi.comm.run import LATER, Steps

RECENT = 1.0  # seconds: a work polled in vain since then is being waited for


class Progress:
    """The operations of one rank that are not complete, over all its communicators.

    None of them moves by itself. So whoever waits for one pushes all: else two ranks that wait for
    two operations in different orders would wait for ever.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.works: list[Work] = []

    @property
    def idle(self) -> bool:
        return not self.works

    def finish(self, steps: Steps, call: Call, transport: Transport) -> None:
        """Does a whole operation."""
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

    def poll(self) -> None:
        """Pushes everything forward as far as it goes."""
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
        progress.works.append(self)
        progress.guard.enter(call)
        try:
            self._advance()
        finally:
            progress.guard.leave()

    def poll(self) -> bool:
        """Whether it is complete; never blocks."""
        self._progress.poll()
        if not self.done:
            self.polled = time.monotonic()
            self.since = min(self.since, self.polled)
        if self._error is not None:
            raise self._error
        return self.done

    def push(self) -> None:
        """Goes on as far as it can without waiting."""
        while not self.done and not (self._needs and not self._test()):
            self._advance()
            if self._needs is LATER:
                return

    def wait(self) -> None:
        """Until it is complete."""
        self._progress.guard.enter(self.call)
        try:
            while not self.done:
                if self._needs and len(self._progress.works) == 1:
                    self._advance(blocks=True)
                else:
                    self._progress.poll()
                    time.sleep(0)  # lets other ranks and threads on this core have their turn
        finally:
            self._progress.guard.leave()
        if self._error is not None:
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
        self.done, self._needs, self._error = True, LATER, error
        self._progress.works.remove(self)
