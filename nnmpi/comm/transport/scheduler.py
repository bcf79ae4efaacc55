"""Schedulers decide when ranks that are threads run, and when their actions reach other ranks.

    hub         matches messages, loses ranks, finds deadlocks
    scheduler   decides whose turn it is, when a message arrives and when a rank notices a loss;
                also provides the ranks' time and threads

`FreeThreads` lets the operating system decide, and delays nothing. Another scheduler may decide all
of it, and so replay a run: tests/simulation has one.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from nnmpi.comm.transport.system import OperatingSystem, System


class Scheduler(System, Protocol):
    """Decides when ranks that are threads run, and when their messages arrive; called under `lock`.
    `pending` is True if something is under way that may let a waiting rank continue."""

    lock: Any
    pending: bool

    def begin(self, rank: int, hub: Any) -> None:
        """Waits until the thread of `rank`, which calls this as it starts, may begin."""

    def turn(self, rank: int, verb: str, requests: Sequence[Any]) -> None:
        """Waits until `rank`, which calls this before each operation, may begin it."""

    def wait(self, rank: int, is_over: Callable[[], bool]) -> None:
        """Makes a waiting rank sleep until `is_over` returns True."""

    def wake(self, ranks: Iterable[int]) -> None:
        """Makes these ranks, if they sleep in `wait`, check again whether they may go on."""

    def buffers(self, message: Any) -> bool:
        """True if a send completes at once, by a copy, as small ones do in MPI."""

    def deliver(self, source: Any, into: Any, complete: Callable[[], object]) -> None:
        """Calls `complete`, which copies a message, at the moment when it is to arrive."""

    def notify(self, rank: int, fact: tuple[str, int], notice: Callable[[], object]) -> None:
        """Calls `notice` when `rank` is to learn of a fact: ("lost", rank), or ("revoked", era)."""

    def end(self, rank: int) -> None:
        """Records that a rank makes no more operations."""


class FreeThreads(OperatingSystem):
    """The scheduler of threads that run whenever the operating system lets them."""

    pending = False

    def __init__(self, size: int) -> None:
        self.lock = threading.RLock()
        self._changed = [threading.Condition(self.lock) for _ in range(size)]  # by rank

    def begin(self, rank: int, hub: Any) -> None:
        pass

    def turn(self, rank: int, verb: str, requests: Sequence[Any]) -> None:
        pass

    def wait(self, rank: int, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._changed[rank].wait()

    def wake(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._changed[rank].notify_all()

    def buffers(self, message: Any) -> bool:
        return False

    def deliver(self, source: Any, into: Any, complete: Callable[[], object]) -> None:
        complete()

    def notify(self, rank: int, fact: tuple[str, int], notice: Callable[[], object]) -> None:
        notice()

    def end(self, rank: int) -> None:
        pass
