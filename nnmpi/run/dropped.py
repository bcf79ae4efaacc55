"""Sessions of Trainers that the program has no reference to any more.

What ranks share is given back by all of them together, so a rank cannot do it when it drops a
Trainer, as in a loop over learning rates: the next Trainer does it for those that all ranks have
dropped.
"""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.backup import Backups
from nnmpi.parallel.strategy import Strategy


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
    sessions: Sessions = comm.attributes.setdefault(SESSIONS, Sessions())
    sessions.opened += 1
    end = weakref.finalize(owner, sessions.dropped.__setitem__, sessions.opened, close)
    end.atexit = False
    return end.detach


def close_dropped(comm: Comm) -> None:
    """Closes the sessions that all ranks have dropped. Every rank calls it."""
    if SESSIONS in comm.attributes:
        dropped = comm.attributes[SESSIONS].dropped
        for number in sorted(set.intersection(*gather_objects(comm, {*dropped}))):
            dropped.pop(number)()


def release(resting: ExitStack, made: Backups | None, strategy: Strategy, model: Module) -> None:
    """Gives back what ranks share of a session; the model keeps what this rank has of it."""
    resting.close()
    if made is not None:
        made.close()
    strategy.close()
    if model._before_user_call is not None:
        model._before_user_call = _refuse


def _refuse() -> NoReturn:
    raise ValueError(
        "this Trainer is closed, and each rank has a part of the model or of samples: call predict "
        "or save before, or load what was saved into a model of its own"
    )
