"""Sessions of Trainers that the program has no reference to any more.

What ranks share is given back by all of them together, so a rank cannot do it when it drops a
Trainer, as in a loop over learning rates: the next Trainer does it for those that all ranks have
dropped.
"""

import weakref
from collections.abc import Callable

from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects


class Dropped:
    """The sessions of one Comm, by their numbers, which are the same on all ranks."""

    def __init__(self) -> None:
        self.opened, self.left = 0, dict[int, Callable[[], None]]()


def watch(comm: Comm, owner: object, close: Callable[[], None]) -> Callable[[], object]:
    """Keeps `close` for when the owner of a session is dropped; returns what forgets it.

    Every rank calls it.
    """
    if comm.size == 1:  # which shares nothing
        return lambda: None
    comm.dropped = found = comm.dropped or Dropped()
    found.opened += 1
    end = weakref.finalize(owner, found.left.__setitem__, found.opened, close)
    end.atexit = False
    return end.detach


def close_dropped(comm: Comm) -> None:
    """Closes the sessions that all ranks have dropped. Every rank calls it."""
    if comm.dropped:
        left = comm.dropped.left
        for number in sorted(set.intersection(*gather_objects(comm, {*left}))):
            left.pop(number)()
