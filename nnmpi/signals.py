"""SIGUSR1 and Ctrl-C of the training command, until the end of the process.

Python starts            the system's default: SIGUSR1 ends the process
the command starts       SIGUSR1 is noted, Ctrl-C ends the run
the Trainer is made      both stop the run after the current step
the run is over          both are ignored: MPI_Finalize may take a while
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None

STOPS = ("SIGUSR1", "SIGINT")
"""The signals that stop a run."""


def handle(name: str, handler: Handler) -> None:
    """Installs a handler, where there is such a signal; only the main thread can."""
    if hasattr(signal, name):
        with suppress(ValueError):  # another thread
            signal.signal(getattr(signal, name), handler)


def ignore() -> None:
    """Ignores what stops a run. Until this thread has done so, it holds such signals back: Python
    complains of one that comes while its handler is removed.
    """
    if sys.platform != "win32":
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGINT])
    for name in STOPS:
        handle(name, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def restored() -> Iterator[None]:
    """After the block, the handlers are those of before."""
    known = [name for name in STOPS if hasattr(signal, name)]
    before = {name: signal.getsignal(getattr(signal, name)) for name in known}
    try:
        yield
    finally:
        for name, handler in before.items():
            handle(name, handler)
