"""Operations that are under way, and the one place that pushes all of them forward."""

import time

from nnmpi.comm.base import Request, Transport
from nnmpi.comm.guard import Call, Guard
from nnmpi.comm.run import LATER, Steps


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
            work.poll()


class Work:
    """An operation that was started: `poll` pushes it forward, `wait` completes it."""

    def __init__(self, steps: Steps, transport: Transport, progress: Progress, call: Call) -> None:
        self.call = call
        self._steps, self._transport, self._progress = steps, transport, progress
        self._needs: list[Request] | None = None
        self.done = False
        progress.works.append(self)
        progress.guard.enter(call)
        try:
            self._advance()
        finally:
            progress.guard.leave()

    def poll(self) -> bool:
        """Whether it is complete; never blocks."""
        while not self.done:
            if self._needs and not self._transport.test(self._needs):
                return False
            self._advance()
            if self._needs is LATER:
                return self.done
        return True

    def wait(self) -> None:
        """Until it is complete."""
        if self.done:
            return
        self._progress.guard.enter(self.call)
        try:
            while not self.done:
                if self._needs and len(self._progress.works) == 1:
                    self._transport.wait(self._needs)
                    self._advance()
                elif not self.poll():
                    self._progress.poll()
                    time.sleep(0)  # lets other ranks and threads on this core have their turn
        finally:
            self._progress.guard.leave()

    def _advance(self) -> None:
        try:
            self._needs = next(self._steps)
        except StopIteration:
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self.done, self._needs = True, LATER
        self._progress.works.remove(self)
