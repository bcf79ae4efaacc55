"""Closes the sessions of Trainers that the program has dropped without calling `close`.

Ranks free shared memory and communicators together, so one rank cannot do it alone when it drops a
Trainer. The next Trainer closes the sessions that all ranks have dropped.
"""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.strategy import Strategy


class Sessions:
    """The sessions that were opened on one Comm, with numbers that are equal on all ranks.

    opened   how many sessions there have been
    dropped  a dict: number of a session whose Trainer was garbage collected on this rank -> the
             function that closes it
    """

    def __init__(self) -> None:
        self.opened, self.dropped = 0, dict[int, Callable[[], None]]()


SESSIONS = "nnmpi.run.sessions"
"""The name of the Comm's attribute with its Sessions. Functions that close a session refer to the
Comm, so as its attribute both become garbage together."""


def watch(comm: Comm, owner: object, close: Callable[[], None]) -> Callable[[], object]:
    """Registers `close`, which `close_dropped` calls once the session `owner` has been garbage
    collected on all ranks; returns a function that cancels that. Every rank calls it."""
    if comm.size == 1:  # one rank shares nothing, and may free its memory at any time
        return lambda: None
    sessions: Sessions = comm.attributes.setdefault(SESSIONS, Sessions())
    sessions.opened += 1
    end = weakref.finalize(owner, sessions.dropped.__setitem__, sessions.opened, close)
    end.atexit = False
    return end.detach


def close_dropped(comm: Comm) -> None:
    """Closes sessions of Trainers collected as garbage on all ranks. Every rank calls it."""
    if SESSIONS in comm.attributes:
        dropped = comm.attributes[SESSIONS].dropped
        for number in sorted(set.intersection(*gather_objects(comm, {*dropped}))):
            dropped.pop(number)()


def release(unsharded: ExitStack, shared: ExitStack, strategy: Strategy, model: Module) -> None:
    """Frees the shared memory and communicators of a session; the model keeps this rank's values.
    First it closes `unsharded` (the parameters gathered for use after a run), then `shared`."""
    unsharded.close()
    shared.close()
    strategy.close()
    if model._before_user_call is not None:
        model._before_user_call = _refuse


def _refuse() -> NoReturn:
    raise ValueError(
        "this Trainer is closed, and each rank has a part of the model or of samples: call predict "
        "or save before closing it, or load what was saved into another model"
    )
