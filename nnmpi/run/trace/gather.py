"""The events of all ranks, on the first rank and on its clock.

How far clocks are apart is estimated from messages that go to and fro:

rank 0      t0 ──────► ──────── t1       offset = t - (t0 + t1) / 2
rank r            t ─┘                   of the fastest round trip; the error is at most half of it
"""

from collections.abc import Callable

import numpy as np

from nnmpi.comm import Comm
from nnmpi.run.trace.recording import EVENT, Recording

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


def gather(comm: Comm, recording: Recording, offsets: np.ndarray) -> list[np.ndarray]:
    """The events of the steps that all ranks have recorded; other ranks get an empty list.

    Every rank calls it.
    """
    table = np.zeros((comm.size, 1), np.int64)
    table[comm.rank] = recording.limit
    comm.all_gather(table)
    own = recording.events(int(table.min())).copy()
    table[comm.rank] = len(own)
    comm.all_gather(table)
    if comm.rank:
        comm.isend(own.view(np.uint8), 0).wait()
        return []
    gathered = [own]
    for rank in range(1, comm.size):
        theirs = np.empty(int(table[rank, 0]), EVENT)
        comm.irecv(theirs.view(np.uint8), rank).wait()
        gathered.append(theirs)
    for events, offset in zip(gathered, offsets.tolist(), strict=True):
        events["began"] -= offset
        events["ended"] -= offset
    return gathered
