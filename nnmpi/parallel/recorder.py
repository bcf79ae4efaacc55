"""Recorder: what a rank does when, for `--trace`; by default nothing is kept."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from nnmpi.schedules import Op

Do: TypeAlias = Callable[[Op], None]
"""Carries out an operation of a step."""


class Recorder(Protocol):
    """Takes events: what was done, since when, and for which micro-batch of which stage.

    A wait within an operation is added before that operation, since it ends first.
    """

    def begin(self, step: int) -> None:
        """The events from here on are of this step."""

    def now(self) -> float:
        """The time, in seconds."""

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        """An event that ends now."""

    def recorded(self, name: str, do: Do) -> Do:
        """The same, and an event at its end."""


class NoRecorder:
    """Keeps nothing."""

    now = staticmethod(time.perf_counter)

    def begin(self, step: int) -> None:
        pass

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        pass

    def recorded(self, name: str, do: Do) -> Do:
        return do


NO_RECORDER: Recorder = NoRecorder()

current_recorder: ContextVar[Recorder] = ContextVar("nnmpi_recorder", default=NO_RECORDER)
"""That of the step under way, for what waits inside a layer or a store. A context variable, since
ranks may be threads."""
