"""Recorder: the interface by which the training steps of a rank report what they do, for a trace.
The default Recorder ignores it; that of --trace is in `addons/trace/`."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeAlias

Do: TypeAlias = Callable[[Any], None]
"""A function that carries out an operation of a list (`schedules/op.py`)."""


class Recorder:
    """Receives an event for each operation (such as a forward pass) and each wait for other ranks
    in it, and ignores it. An event has name, start time, micro-batch and stage (-1: none).

    A wait within an operation is added before that operation, because it ends first.
    """

    now: Callable[[], float] = staticmethod(time.perf_counter)
    """Returns the time in seconds."""

    def begin(self, step: int) -> None:
        """Begins step number `step`, to which later events belong. Does nothing here."""

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        """Records an event from the time `began` until now; does nothing here."""

    def evaluation(self) -> AbstractContextManager[None]:
        """Returns a context for an evaluation, whose events belong to no training step."""
        return nullcontext()

    def recorded(self, name: str, do: Do) -> Do:
        """Returns a function like `do` that also adds an event called `name` at its end."""
        return do

    def waits(self, name: str, micro: int = -1, stage: int = -1) -> AbstractContextManager[None]:
        """Returns a context in which this rank waits for others; its end adds an event."""
        return UNRECORDED if self is NO_RECORDER else Timed(self, name, micro, stage)


NO_RECORDER = Recorder()

current_recorder: ContextVar[Recorder] = ContextVar("nnmpi_recorder", default=NO_RECORDER)
"""The recorder of the step in progress; a variable, since ranks may be threads."""


class Timed:
    """A context that adds an event to a recorder at its end, unless an exception leaves it."""

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
    """Returns a context for a wait for others; its end adds an event to the current recorder."""
    return current_recorder.get().waits(name, micro, stage)
