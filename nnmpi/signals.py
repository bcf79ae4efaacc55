"""SIGUSR1 and Ctrl-C of the training command, from its first line to the end of the process.

    Python starts            the system's default: SIGUSR1 ends the process
    this package is imported SIGUSR1 is noted (`note_early`)
    the Trainer is made      both stop the run after the current step
    the run is over          both are ignored: MPI_Finalize may take a while

`python -m nnmpi.train` imports the package before the first line of `nnmpi.train`, which takes 0.3
seconds. So the package calls `note_early` first of all, which does nothing for anybody else.
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


class Noted:
    """A signal handler that notes that the signal came."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True


def note_early() -> None:
    """If `python -m nnmpi.train` is about to run, notes SIGUSR1 from now on, and Ctrl-C ends the
    process without a traceback of what was being imported.
    """
    if is_command(sys.argv, sys.orig_argv):
        handle("SIGUSR1", Noted())
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            handle("SIGINT", signal.SIG_DFL)


def is_command(argv: list[str], given: list[str]) -> bool:
    """Whether Python imports the package for `-m nnmpi.train`.

    argv    ["-m", ...] while Python looks for the module, and the arguments of the module
    given   [python, its options, "-m", "nnmpi.train", the arguments of the module]
    """
    return argv[:1] == ["-m"] and given[-len(argv)].removeprefix("-m") == "nnmpi.train"


def early() -> Noted:
    """The handler that notes SIGUSR1 since the first line; a new one if nobody has asked for it."""
    number = getattr(signal, "SIGUSR1", None)
    found = signal.getsignal(number) if number else None
    return found if isinstance(found, Noted) else Noted()


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
    before = [(name, signal.getsignal(getattr(signal, name))) for name in known]
    try:
        yield
    finally:
        for name, handler in before:
            handle(name, handler)
