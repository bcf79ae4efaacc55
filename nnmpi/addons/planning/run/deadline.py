"""Deadline: a limit of time that expires on all ranks in the same call."""

import time
from collections.abc import Callable
from math import inf

import numpy as np

from nnmpi.comm import Comm


class OutOfTimeError(Exception):
    """Raised on all ranks in the same call, when time is up on one."""


class Deadline:
    """A time limit for measurements: a number of seconds from now, by the clock of each rank."""

    def __init__(self, seconds: float = inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def check(self, comm: Comm) -> None:
        """Synchronizes all ranks of a Comm, which all call it; raises OutOfTimeError on all if time
        is up on one."""
        late = np.array([float(self._clock() > self._end)])
        comm.all_reduce(late, "doubling")
        if late[0]:
            raise OutOfTimeError
