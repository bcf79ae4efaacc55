"""Limits on the times in which MPI starts and ends, while no thread of Python runs."""

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2


@contextmanager
def limited_start(seconds: float) -> Iterator[None]:
    """Ends this process, as `end_after` does, if the block lasts for longer."""
    end_after(seconds)
    try:
        yield
    finally:
        if seconds <= threading.TIMEOUT_MAX:
            faulthandler.cancel_dump_traceback_later()


def end_after(seconds: float) -> None:
    """Ends this process, with its stack on stderr and status 1, if it lasts for longer."""
    if seconds <= threading.TIMEOUT_MAX:
        faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
