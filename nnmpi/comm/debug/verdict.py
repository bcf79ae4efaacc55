"""What a rank does when another one is gone, silent or ends, or when it fails itself: one table.

The watchdog and the exception hooks see what happens, print what they know, and ask here. A job
that is fault tolerant (`mpirun --with-ft ulfm`) goes on where that can be right.
"""

import os
import signal
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

INTERRUPTED = 130  # the exit status that shells give to Ctrl-C


class Trouble(Enum):
    """What a rank sees."""

    INTERRUPTED = "this rank gets Ctrl-C"
    FAILED = "an exception ends this rank alone"
    ALL_OVER = "an exception ends this rank, and every other has failed or come to its end"
    NOT_RECOVERED = "nobody takes the RankLost of this rank"
    LEFT = "this rank waits for one that has come to its end"
    SILENT = "for NNMPI_TIMEOUT this rank waits for one that does not answer, or only computes"
    STUCK = "for NNMPI_TIMEOUT this rank waits, and so do all others"


class Remedy(Enum):
    """What is done about it."""

    END_JOB = "all ranks end"
    END_RANK = "this rank ends, by SIGKILL: no other signal or status is noticed by the others"
    END_SILENT = "a rank of the same host kills it"


class Verdict(NamedTuple):
    """What is done; `status` is that of the job where it ends."""

    remedy: Remedy
    status: int = 1


END = Verdict(Remedy.END_JOB)
VERDICTS: dict[Trouble, tuple[Verdict, Verdict]] = {  # of a usual job, of a fault-tolerant one
    Trouble.INTERRUPTED: (Verdict(Remedy.END_JOB, INTERRUPTED),) * 2,
    Trouble.FAILED: (END, Verdict(Remedy.END_RANK)),
    Trouble.ALL_OVER: (END, END),
    Trouble.NOT_RECOVERED: (END, END),
    Trouble.LEFT: (END, END),
    Trouble.SILENT: (END, Verdict(Remedy.END_SILENT)),
    Trouble.STUCK: (END, END),
}
"""That a rank is gone is seen by MPI: it ends a usual job, and raises RankLost in the other."""


class Judge:
    """Decides for one rank, and ends the rank or the job; `end_job` takes a status."""

    def __init__(self, end_job: Callable[[int], None], fault_tolerant: bool = False) -> None:
        self.fault_tolerant = fault_tolerant
        self._end_job = end_job

    def verdict(self, trouble: Trouble) -> Verdict:
        return VERDICTS[trouble][self.fault_tolerant]

    def act(self, trouble: Trouble) -> None:
        """Carries the verdict out where it ends this rank or the job; what is known is printed."""
        found = self.verdict(trouble)
        if found.remedy is Remedy.END_RANK:
            os.kill(os.getpid(), signal.SIGKILL)
        if found.remedy is Remedy.END_JOB:
            self._end_job(found.status)
