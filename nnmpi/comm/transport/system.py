"""The clock and threads of ranks: those of the operating system, or simulated by a scheduler."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

T = TypeVar("T")


class System(Protocol):
    """The clock by which ranks measure and wait, and the threads that they start."""

    def clock(self) -> float:
        """Returns seconds since an arbitrary moment."""

    def sleep(self, seconds: float) -> None:
        """Returns after `seconds`."""

    def in_thread(self, f: Callable[[], T]) -> Future[T]:
        """Runs f, which must not use a Comm, in a thread, and returns a Future with its result."""


class OperatingSystem:
    """The clock and threads of the operating system."""

    clock = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)

    @staticmethod
    def in_thread(f: Callable[[], T]) -> Future[T]:
        """Runs f in a daemon thread, for which the process need not wait; returns a Future."""
        future = Future[T]()

        def run() -> None:
            try:
                future.set_result(f())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="nnmpi call", daemon=True).start()
        return future
