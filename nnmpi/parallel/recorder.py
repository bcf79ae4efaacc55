"""Recorder: what a rank does in a step, one entry after the other; by default nothing is kept.

An operation of a program is an entry, and so is each wait within one. Who keeps them:

    StepLog    of a step on paper, without times: the exchanges of each operation (paper/log.py)
    Recording  of --trace, with times: operations, waits, and works of the Comms (io/trace/)
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TypeAlias

from nnmpi.schedules.op import Op

Do: TypeAlias = Callable[[Op], None]
"""Carries out an operation of a step."""


class Recorder:
    """Takes events: what was done, since when, and for which micro-batch of which stage.

    A wait within an operation is added before that operation, since it ends first.
    """

    now: Callable[[], float] = staticmethod(time.perf_counter)
    """The time, in seconds."""

    def begin(self, step: int) -> None:
        """The events from here on are of this step."""

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        """An event that ends now."""

    def evaluation(self) -> AbstractContextManager[None]:
        """A context whose events are part of no step."""
        return nullcontext()

    def recorded(self, name: str, do: Do) -> Do:
        """A function that does the same, and adds an event at its end."""
        return do

    def waits(self, name: str, micro: int = -1, stage: int = -1) -> AbstractContextManager[None]:
        """A context in which a rank waits for others; it may be entered in each step."""
        return UNRECORDED if self is NO_RECORDER else Timed(self, name, micro, stage)


NO_RECORDER = Recorder()

current_recorder: ContextVar[Recorder] = ContextVar("nnmpi_recorder", default=NO_RECORDER)
"""The recorder of the step or the evaluation under way. A context variable, since ranks may be
threads."""


class Timed:
    """A context that is an event of a recorder, unless it raises."""

    __slots__ = ("_began", "_name", "_recorder", "_where")

    def __init__(self, recorder: Recorder, name: str, *where: int) -> None:
        self._recorder, self._name, self._where = recorder, name, where

    def __enter__(self) -> None:
        self._began = self._recorder.now()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._recorder.add(self._name, self._began, *self._where)


UNRECORDED = nullcontext()


def waiting(name: str, micro: int = -1, stage: int = -1) -> AbstractContextManager[None]:
    """`Recorder.waits` of the step under way."""
    return current_recorder.get().waits(name, micro, stage)
