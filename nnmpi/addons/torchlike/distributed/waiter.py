"""A thread that polls handles and calls a function when each is complete."""

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from nnmpi.addons.torchlike.distributed.rows import Handle

POLL_SECONDS = 5e-5  # seconds between two polls

Ended: TypeAlias = Callable[[BaseException | None], None]
"""Called when a handle is complete, with the error that has ended it, if any."""


class Waiter:
    """Polls handles (collectives and messages in progress) in a thread of its own, and calls a
    function when each is complete. MPI must allow calls from several threads."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Handle, Ended]] = []
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, handle: Handle, ended: Ended) -> None:
        """Registers `ended` to be called as ended(None) when the handle is complete, or as
        ended(error) if it fails: at once, or later in the thread."""
        if _has_ended(handle, ended):
            return
        self._waiting.append((handle, ended))
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nnmpi waiter", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                for pair in [*self._waiting]:
                    if _has_ended(*pair):
                        self._waiting.remove(pair)
                time.sleep(POLL_SECONDS)


def _has_ended(handle: Handle, ended: Ended) -> bool:
    try:
        if not handle.is_completed():
            return False
    except BaseException as error:
        ended(error)
    else:
        ended(None)
    return True
