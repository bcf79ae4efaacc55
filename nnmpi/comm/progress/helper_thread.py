"""A thread that progresses a rank's operations while the rank computes.

rank     start ──── computes ──── start ──── computes ──── wait
                │                    │                       ▲
helper          └─ poll · poll · poll · poll · poll · poll ──┘   a pause between two
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

from nnmpi.comm.progress.work import Progress

LONGEST_PAUSE = 1.0  # seconds; the end of the context may have to wait that long


@contextmanager
def progress_thread(progress: Progress, pause: float) -> Iterator[None]:
    """Runs the thread while the context is open.

    An error in the thread is raised where the rank next polls, waits or calls a collective, and at
    the end of the context at the latest.
    """
    if not 0 <= pause <= LONGEST_PAUSE:
        raise ValueError(f"a pause of {pause} s between two polls: use 0 to {LONGEST_PAUSE:g}")
    wake, ended = threading.Event(), threading.Event()

    def run() -> None:
        """Polls while there are operations, and sleeps until the next one starts."""
        while not ended.is_set():
            wake.clear()
            if progress.works:
                progress.poll_from_helper()
                time.sleep(pause)
            elif not ended.is_set():
                wake.wait()

    with progress.notify(wake):
        thread = threading.Thread(
            target=copy_context().run, args=(run,), name="nnmpi helper", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            wake.set()
            thread.join()
    progress.raise_error()
