"""Sessions of Trainers that the program has no reference to any more.

What ranks share is given back by all of them together, so a rank cannot do it when it drops a
Trainer, as in a loop over learning rates: the next Trainer does it for those that all ranks have
dropped.
"""

import weakref
from collections.abc import Callable

from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects


class Sessions:
    """The sessions of one Comm, by their numbers, which are the same on all ranks.

    opened   how many there were
    dropped  what closes those that this rank has no Trainer of any more
    """

    def __init__(self) -> None:
        self.opened, self.dropped = 0, dict[int, Callable[[], None]]()


SESSIONS = "nnmpi.run.sessions"
"""The attribute of a Comm: what closes a session knows the Comm, so both are garbage together."""


def watch(comm: Comm, owner: object, close: Callable[[], None]) -> Callable[[], object]:
    """Keeps `close` for when the owner of a session is dropped; returns what forgets it.

    Every rank calls it.
    """
    if comm.size == 1:  # which shares nothing
        return lambda: None
    found: Sessions = comm.attributes.setdefault(SESSIONS, Sessions())
    found.opened += 1
    end = weakref.finalize(owner, found.dropped.__setitem__, found.opened, close)
    end.atexit = False
    return end.detach


def close_dropped(comm: Comm) -> None:
    """Closes the sessions that all ranks have dropped. Every rank calls it."""
    if SESSIONS in comm.attributes:
        dropped = comm.attributes[SESSIONS].dropped
        for number in sorted(set.intersection(*gather_objects(comm, {*dropped}))):
            dropped.pop(number)()
