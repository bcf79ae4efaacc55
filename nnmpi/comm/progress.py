"""Works: operations that were started, and the progress engine that moves all of them forward.

An operation is a generator: it yields the requests that its next step needs. A thread may move
operations forward while the rank computes (`Progress.thread`):

rank     start ──── computes ──── start ──── computes ──── wait
                │                    │                       ▲
helper          └─ poll · poll · poll · poll · poll · poll ──┘   a pause between two
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

from nnmpi.comm.call_log import CallLog, CallRecord, CallSignature, LoggedCall
from nnmpi.comm.steps import NOT_YET, Copies, Steps, with_copies
from nnmpi.comm.transport.base import RankLost, Receiver, Request, Transport, TransportFamily

LONGEST_PAUSE = 1.0  # seconds between two polls; the end of the context may have to wait that long
RECENT = 1.0  # seconds: a rank that polled a work within them is waiting for it


class Progress:
    """The works of one rank, over all its communicators.

    None of them moves by itself. So a rank that waits for one moves all: else two ranks that wait
    for two operations in different orders would deadlock.

    Only the rank's own thread starts works; helper threads may move them. Whatever moves a work, or
    posts a message while there are works, holds the lock.
    """

    def __init__(self, log: CallLog) -> None:
        self.log = log
        self.works: list[Work] = []
        self.comms = WeakSet[Any]()  # of this rank
        self.lock = threading.RLock()
        self.family = TransportFamily()  # the last one of this rank's Comms
        self._abandoned = set[TransportFamily]()  # keep requests that MPI may still complete
        self.wakes = list[threading.Event]()  # of helper threads, set whenever a work starts
        self.error: BaseException | None = None  # raised in a helper thread

    def finish(self, steps: Steps, call: CallRecord, transport: Transport) -> None:
        """Carries out a whole operation."""
        if self.error is not None:
            self.raise_error()
        if self.works:
            Work(steps, transport, self, call).wait()
            return
        log = self.log
        log.waits = call, monotonic()
        try:
            for needs in steps:  # there is nothing else to move, so the library may block
                if needs:
                    transport.wait(needs)
        finally:
            log.waits = None

    @contextmanager
    def works_in(self, works: "list[Work]") -> Iterator[None]:
        """Keeps works in this list: `append` and `remove`, under the lock, start and end a work."""
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
        """Moves every work as far as it goes without waiting, unless another thread is doing so.

        With `keep_error` an error is kept for the rank's own thread, which else raises it.
        """
        if self.error is not None and not keep_error:
            self.raise_error()
        if not self.lock.acquire(blocking=False):
            time.sleep(0)  # or the other one could not go on
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
        """Raises the error of a helper thread, if there was one."""
        with self.lock:
            error, self.error = self.error, None
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Ends all works, and revokes the Comms of this rank.

        A work that is waited for or polled later raises RankLost.
        """
        self.family.abandon()
        self._abandoned.add(self.family)
        with self.lock:  # a helper thread that was in an operation has left it: it was revoked
            self.error = None
            for work in tuple(self.works):
                work.abandon()

    def shrink(self) -> Transport:
        """The first transport of the ranks that are left; it abandons.

        Their family is the last one from here on, though this rank has no Comm of it yet: where
        another rank is lost meanwhile, others may have theirs already, and all shrink that family.
        """
        self.abandon()
        left = self.family.shrink()
        self.family = left.family
        return left

    @contextmanager
    def thread(self, pause: float) -> Iterator[None]:
        """Runs a thread that polls every `pause` seconds, and sleeps while there are no works.

        An error in it is raised where the rank next polls, waits or calls a collective, and at the
        end of the context at the latest.
        """
        if not 0 <= pause <= LONGEST_PAUSE:
            raise ValueError(f"a pause of {pause} s between two polls: use 0 to {LONGEST_PAUSE:g}")
        ended, wake = threading.Event(), threading.Event()
        self.wakes.append(wake)

        def run() -> None:
            while not ended.is_set():
                wake.clear()
                if self.works:
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

    def waiting(self) -> tuple[LoggedCall, float] | None:
        """The call or the polled work that this rank waits for, and for how many seconds."""
        now = time.monotonic()
        polled = [w for w in tuple(self.works) if w.last_poll > now - RECENT]
        oldest = min(polled, key=lambda w: w.first_poll, default=None)
        if oldest is None:
            return self.log.waiting()
        return self.log.waiting() or (oldest.call, now - oldest.first_poll)


class Work:
    """An operation that was started: `poll` tells whether it is complete, `wait` completes it.

    Both move every operation of this rank forward.
    """

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
        # times of the polls that found it incomplete, since it last moved
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
        """The call, without its number and place."""
        return self._record[0]

    @property
    def call(self) -> LoggedCall:
        """The call with its number and place, as it is in the log."""
        return LoggedCall.of(self._record)

    def poll(self) -> bool:
        """Whether it is complete; never blocks."""
        self._progress.poll()
        if not self.done:
            self.last_poll = time.monotonic()
            self.first_poll = min(self.first_poll, self.last_poll)
        if self._error is not None:
            self._raise(self._error)
        return self.done

    def wait(self) -> None:
        """Returns when it is complete: moves everything, or waits for this work alone if there is
        nothing else."""
        progress = self._progress
        progress.log.waits = self._record, monotonic()
        try:
            while not self.done:
                with progress.lock:  # keeps helper threads out meanwhile
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
        """Ends it without its result. The caller holds the lock of the progress."""
        self._end(RankLost(f"{self.signature.operation} was abandoned, since a rank was lost"))

    def _raise(self, error: BaseException) -> NoReturn:
        """Raises the error of this work, which a helper thread need not raise again."""
        with self._progress.lock:  # a helper that has ended the work has kept the error by then
            if self._progress.error is error:
                self._progress.error = None
        raise error

    def step(self, blocks: bool = False) -> bool:
        """Takes one step if its requests are complete, or when they are; returns whether another
        may follow. The caller holds the lock of the progress."""
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
        self.done = True  # last: a thread that sees it need not take the lock
