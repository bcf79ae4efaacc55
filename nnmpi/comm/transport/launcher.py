"""Detects the launcher of Open MPI 5 (prterun), and ends jobs so that it prints nothing.

The launcher prints lines below the last message of a rank, except in two cases: it is ended by
SIGTERM (by which a rank ends the job with status 1), or the last rank to end is the only one whose
exit status is not 0.
"""

import fcntl
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

NAME = "prterun\n"


def is_launcher(process: int) -> bool:
    """True if the process is the launcher of ranks on this host."""
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text() == NAME
    return False


def terminate(launcher: int) -> None:
    """Sends SIGTERM to Open MPI's launcher, which ends all ranks with status 1, and waits 5 s to be
    ended; returns at once if the process is another. MPI_Abort would make it print 14 lines."""
    with suppress(OSError), open(f"/proc/{launcher}/comm") as name:
        if name.read() == NAME:
            with suppress(BlockingIOError):  # another rank does: a second signal prints a message
                fcntl.flock(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.kill(launcher, signal.SIGTERM)
            time.sleep(5.0)


def wait_for_other_ranks() -> None:
    """Returns when the other ranks of this node have ended, or after 2 seconds. A rank with a
    status other than 0 calls it to end last: otherwise the launcher prints seven lines."""
    launcher, until = os.getppid(), time.monotonic() + 2.0
    time.sleep(0.1)  # for ranks of other nodes, and systems without /proc
    with suppress(OSError):
        children = Path(f"/proc/{launcher}/task/{launcher}/children")
        while len(children.read_text().split()) > 1 and time.monotonic() < until:
            time.sleep(0.02)
    time.sleep(0.1)
