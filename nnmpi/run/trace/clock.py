"""How far the clocks of ranks are apart: estimated from messages that go to and fro.

rank 0      t0 ──────► ──────── t1       offset = t - (t0 + t1) / 2
rank r            t ─┘                   of the fastest round trip; the error is at most half of it
"""

from collections.abc import Callable

import numpy as np

from nnmpi.comm import Comm

ROUNDS = 20


def offsets(comm: Comm, now: Callable[[], float]) -> np.ndarray:
    """On rank 0, how far the clock of each rank is ahead of its own; every rank calls it.

    Clocks of several hosts have any start. They also drift, by up to some microseconds a second,
    which is not corrected.
    """
    found = np.zeros(comm.size)
    if comm.rank == 0:
        for other in range(1, comm.size):
            found[other] = min(_asked(comm, other, now) for _ in range(ROUNDS))[1]
    else:
        for _ in range(ROUNDS):
            _answer(comm, now)
    return found


def _asked(comm: Comm, other: int, now: Callable[[], float]) -> tuple[float, float]:
    """The time of a round trip, and how far the other clock is ahead."""
    theirs, began = np.zeros(1), now()
    comm.isend(theirs, other).wait()
    comm.irecv(theirs, other).wait()
    ended = now()
    return ended - began, theirs[0] - (began + ended) / 2


def _answer(comm: Comm, now: Callable[[], float]) -> None:
    message = np.zeros(1)
    comm.irecv(message, 0).wait()
    message[0] = now()
    comm.isend(message, 0).wait()
