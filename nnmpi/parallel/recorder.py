"""Recorder: what a rank does when, for `--trace`; by default nothing is kept."""

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

    A wait within an operation is added before that operation, since it ends first. This one keeps
    nothing; `run/trace/recording.py` has the one that does.
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


NO_RECORDER = Recorder()

current_recorder: ContextVar[Recorder] = ContextVar("nnmpi_recorder", default=NO_RECORDER)
"""The recorder of the step under way, for what waits inside a layer or a store. A context variable,
since ranks may be threads."""


def record_wait(name: str, wait: Callable[[], object]) -> None:
    """Waits, and adds an event of it to the step under way."""
    recorder = current_recorder.get()
    began = recorder.now()
    wait()
    recorder.add(name, began)
