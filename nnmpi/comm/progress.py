"""Works: operations in progress, and the progress engine that moves all of them forward.

An operation is a generator that yields the requests its next step needs. A thread may move
operations forward while the rank computes (`Progress.thread`), with a pause between two polls:

rank     start ──── computes ──── start ──── computes ──── wait
                │                    │                       ▲
helper          └─ poll · poll · poll · poll · poll · poll ──┘
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from time import monotonic
from typing import Any, NoReturn
from weakref import WeakSet

from nnmpi.comm.call_log import KEPT, CallLog, CallRecord, CallSignature, LoggedCall
from nnmpi.comm.steps import NOT_YET, Copies, Steps, with_copies
from nnmpi.comm.transport.base import RankLost, Receiver, Request, Transport, TransportFamily

LONGEST_PAUSE = 1.0  # seconds between two polls; the end of the context may wait that long
RECENT = 1.0  # seconds since the last poll in which a rank still counts as waiting for a work


class Progress:
    """The progress engine of one rank: its operations in progress (Works), over all its Comms.

    No operation moves by itself, so a rank that waits for one work moves all of them. Otherwise two
    ranks that wait for two operations in different orders would deadlock. Only the rank's own
    thread starts works. Whoever moves a work, or posts a message while works are pending, holds the
    lock.
    """

    def __init__(self, log: CallLog) -> None:
        self.log = log
        self.works: list[Work] = []
        self.comms = WeakSet[Any]()  # all Comms of this rank
        self.lock = threading.RLock()
        self.family = TransportFamily()  # the newest family of this rank's Comms
        self._abandoned = set[TransportFamily]()  # hold buffers that MPI may still write to
        self.wakes = list[threading.Event]()  # of helper threads, set whenever a work starts
        self.error: BaseException | None = None  # raised in a helper thread

    def finish(self, steps: Steps, call: CallRecord, transport: Transport) -> None:
        """Carries out an operation to its end; those in progress move forward meanwhile."""
        if self.error is not None:
            self.raise_error()
        if self.works:
            Work(steps, transport, self, call).wait()
            return
        log = self.log
        log.waits = call, monotonic()
        try:
            for needs in steps:  # no other work is pending, so the library may block
                if needs:
                    transport.wait(needs)
        finally:
            log.waits = None

    @contextmanager
    def works_in(self, works: "list[Work]") -> Iterator[None]:
        """A context in which operations in progress are kept in the given list, whose `append` and
        `remove` are called under the lock when one starts and ends."""
        with self.lock:
            outer, self.works = self.works, works
            works[:] = outer
        try:
            yield
        finally:
            with self.lock:
                self.works = outer
                outer[:] = works

    def poll(self, keep_error: bool = False) -> None:
        """Moves every operation in progress as far as it goes without waiting, unless another
        thread does. With `keep_error`, an error is stored for the rank's own thread."""
        if self.error is not None and not keep_error:
            self.raise_error()
        if not self.lock.acquire(blocking=False):
            time.sleep(0)  # releases the interpreter lock, so that the other thread can go on
            return
        try:
            for work in tuple(self.works):
                while not work.done and work.step():
                    pass
        except BaseException as error:
            if not keep_error:
                raise
            self.error = self.error or error
        finally:
            self.lock.release()

    def raise_error(self) -> None:
        """Raises the stored error of a helper thread, if there is one, and forgets it."""
        with self.lock:
            error, self.error = self.error, None
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Ends this rank's Comms on all ranks; operations under way raise RankLost."""
        self.family.abandon()
        self._abandoned.add(self.family)
        with self.lock:  # a helper thread leaves its operation, which has been revoked
            self.error = None
            for work in tuple(self.works):
                work.abandon()

    def shrink(self) -> Transport:
        """Abandons the Comms of this rank after a rank was lost; returns the first transport of a
        new TransportFamily, of the ranks left.

        The new family replaces the old one at once: if another rank is lost, the next `shrink` must
        be that of the new family on all ranks, since some may be using it already.
        """
        self.abandon()
        self.log.records.clear()  # calls of new Comms have the names and numbers of these
        left = self.family.shrink()
        self.family = left.family
        return left

    @contextmanager
    def thread(self, pause: float) -> Iterator[None]:
        """A context with a thread that polls every `pause` seconds while operations are pending. An
        error in it is raised when the rank next polls, waits or calls a collective, or at the end
        of the context."""
        if not 0 <= pause <= LONGEST_PAUSE:
            raise ValueError(f"a pause of {pause} s between two polls: use 0 to {LONGEST_PAUSE:g}")
        ended, wake = threading.Event(), threading.Event()
        self.wakes.append(wake)

        def run() -> None:
            while not ended.is_set():
                wake.clear()
                if self.works:  # polls and sleeps: a thread that blocks in MPI takes a whole core
                    self.poll(keep_error=True)
                    time.sleep(pause)
                elif not ended.is_set():
                    wake.wait()

        helper = threading.Thread(
            target=copy_context().run, args=(run,), name="nnmpi helper", daemon=True
        )
        helper.start()
        try:
            yield
        finally:
            ended.set()
            wake.set()
            helper.join()
            self.wakes.remove(wake)
        self.raise_error()

    def last_calls(self) -> list[LoggedCall]:
        """The last calls of this rank, and those that are not complete."""
        return [*self.log.calls, *(work.call for work in tuple(self.works)[:KEPT])]

    def waiting(self) -> tuple[LoggedCall, float] | None:
        """Returns (the call that this rank waits for, its seconds), or None."""
        time_now = time.monotonic()
        polled = [w for w in tuple(self.works) if w.last_poll > time_now - RECENT]
        oldest = min(polled, key=lambda w: w.first_poll, default=None)
        if oldest is None:
            return self.log.waiting()
        return self.log.waiting() or (oldest.call, time_now - oldest.first_poll)


class Work:
    """An operation in progress: `poll` returns whether it is complete, `wait` completes it. Both
    move all operations of this rank forward."""

    def __init__(
        self,
        steps: Steps,
        transport: Transport | Receiver,
        progress: Progress,
        call: CallRecord,
        copies: Copies = None,
    ) -> None:
        self._record = call
        self._steps = steps if copies is None else with_copies(steps, copies)
        self._transport, self._progress = transport, progress
        self._needs: list[Request] | None = None
        self._error: BaseException | None = None
        self.done = False
        # when polls found it incomplete, first and last, since its last step
        self.first_poll, self.last_poll = math.inf, -math.inf
        progress.log.waits = call, monotonic()
        try:
            with progress.lock:
                progress.works.append(self)
                for wake in progress.wakes:
                    wake.set()
                self.step()
        finally:
            progress.log.waits = None

    @property
    def signature(self) -> CallSignature:
        """The call without its number and code location."""
        return self._record[0]

    @property
    def call(self) -> LoggedCall:
        """The call with its number and code location, as in the log."""
        return LoggedCall.of(self._record)

    def poll(self) -> bool:
        """Returns True if the operation is complete; never blocks."""
        self._progress.poll()
        if not self.done:
            self.last_poll = time.monotonic()
            self.first_poll = min(self.first_poll, self.last_poll)
        if self._error is not None:
            self._raise(self._error)
        return self.done

    def wait(self) -> None:
        """Returns when the operation is complete; moves all operations of this rank meanwhile, or
        blocks inside the MPI library if this is the only one."""
        progress = self._progress
        progress.log.waits = self._record, monotonic()
        try:
            while not self.done:
                with progress.lock:  # keeps helper threads out of a blocking step
                    is_alone = self._needs and len(progress.works) == 1
                    if is_alone and progress.error is None:
                        self.step(blocks=True)
                        continue
                    progress.poll()
                time.sleep(0)  # lets other ranks and threads use this core
        finally:
            progress.log.waits = None
        if self._error is not None:
            self._raise(self._error)

    def abandon(self) -> None:
        """Ends the operation without a result, since a rank was lost; later calls raise RankLost.
        The caller holds the lock of the progress engine."""
        self._end(RankLost(f"{self.signature.operation} was abandoned, since a rank was lost"))

    def _raise(self, error: BaseException) -> NoReturn:
        """Raises this operation's error, which a helper thread may have stored."""
        with self._progress.lock:  # a helper that ended this work has stored the error by then
            if self._progress.error is error:
                self._progress.error = None
        raise error

    def step(self, blocks: bool = False) -> bool:
        """Takes the operation's next step, which may be the last, if the requests that it waits for
        are complete, or, with `blocks`, after waiting for them; returns whether it has. The caller
        holds the lock of the progress engine."""
        try:
            if self._needs and blocks:
                self._transport.wait(self._needs)
            elif self._needs and not self._transport.test(self._needs):
                return False
            self._needs = next(self._steps)
            self.first_poll = math.inf
        except StopIteration:
            self._end()
        except BaseException as error:
            self._end(error)
            raise
        return self._needs is not NOT_YET

    def _end(self, error: BaseException | None = None) -> None:
        self._needs, self._error = NOT_YET, error
        self._progress.works.remove(self)
        self.done = True  # set last: threads read it without taking the lock
