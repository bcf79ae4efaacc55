"""Schedulers: when ranks that are threads go on, and when what one of them does reaches the others.

    hub      what happens: messages are matched, ranks are lost, deadlocks are found
    here     when: whose turn it is, when a message arrives, when a rank notices a loss; also the
             time and the threads of ranks

`FreeThreads` leaves it to the operating system, and nothing is ever late. Another scheduler may
decide all of it, and so replay a run: tests/simulation has one.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from nnmpi.comm.transport.system import OperatingSystem, System


class Scheduler(System, Protocol):
    """Decides when the ranks of a hub go on; the methods below are called under `lock`.

    pending  True if something is under way that may let a waiting rank go on
    """

    lock: Any
    pending: bool

    def begin(self, rank: int, hub: Any) -> None:
        """Returns when the thread of a rank may begin."""

    def turn(self, rank: int, verb: str, requests: Sequence[Any]) -> None:
        """Returns when a rank may make an operation, which `verb` names, on these requests."""

    def wait(self, rank: int, is_over: Callable[[], bool]) -> None:
        """Returns when `is_over` returns True."""

    def wake(self, ranks: Iterable[int]) -> None:
        """Lets these ranks, where they wait, look again whether their wait is over."""

    def buffers(self, message: Any) -> bool:
        """True if a send that nobody receives yet is complete: its data were copied."""

    def deliver(self, source: Any, into: Any, complete: Callable[[], object]) -> None:
        """Calls `complete`, which copies a message, when it arrives."""

    def notify(self, rank: int, fact: tuple[str, int], notice: Callable[[], object]) -> None:
        """Calls `notice` when a rank notices that a rank is lost, or that an era is revoked."""

    def end(self, rank: int) -> None:
        """Records that a rank makes no operation any more."""


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
