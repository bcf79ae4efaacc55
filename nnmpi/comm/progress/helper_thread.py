"""A thread beside a rank's own that pushes works forward while the rank computes.

rank     start ──── computes ──── start ──── computes ──── wait
                │                    │                       ▲
helper          └─ push · push · push · push · push · push ──┘   a pause between two
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

from nnmpi.comm.progress.work import Progress

LONGEST = 1.0  # seconds: for so long the end of the context may have to wait


@contextmanager
def background(progress: Progress, pause: float) -> Iterator[None]:
    """Around what a helper runs beside.

    What goes wrong in the helper is raised where the rank next polls, waits or finishes something,
    and here at the latest.
    """
    if not 0 <= pause <= LONGEST:
        raise ValueError(f"a pause of {pause} s between two looks: use 0 to {LONGEST:g}")
    helper = _Helper(progress, pause)
    with progress.woken(helper.wake):
        thread = threading.Thread(
            target=copy_context().run, args=(helper.run,), name="nnmpi helper", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            helper.end()
            thread.join()
    progress.tell()


class _Helper:
    """What the thread does: it looks while works are under way, and else sleeps till one begins."""

    def __init__(self, progress: Progress, pause: float) -> None:
        self._progress, self._pause = progress, pause
        self.wake, self._ended = threading.Event(), False

    def run(self) -> None:
        while not self._ended:
            self.wake.clear()
            if self._progress.works:
                self._progress.help()
                time.sleep(self._pause)
            elif not self._ended:
                self.wake.wait()

    def end(self) -> None:
        self._ended = True
        self.wake.set()
