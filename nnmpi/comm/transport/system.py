"""System: time and threads as ranks have them: of the operating system, or of a scheduler."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

T = TypeVar("T")


class System(Protocol):
    """The time by which ranks measure and wait, and the threads that they start."""

    def clock(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Returns after so many seconds."""

    def in_thread(self, f: Callable[[], T]) -> Future[T]:
        """A Future with the result of f, which a thread computes that uses no Comm."""


class OperatingSystem:
    """The System that a process has."""

    clock = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)

    @staticmethod
    def in_thread(f: Callable[[], T]) -> Future[T]:
        """A Future with the result of f, which a daemon thread computes: the process can end
        without waiting for it."""
        future = Future[T]()

        def run() -> None:
            try:
                future.set_result(f())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="nnmpi call", daemon=True).start()
        return future
