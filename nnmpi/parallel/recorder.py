"""Recorder: what a rank does when, for `--trace`; by default nothing is kept."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


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


class NoRecorder:
    """Keeps nothing."""

    now = staticmethod(time.perf_counter)

    def begin(self, step: int) -> None:
        pass

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        pass


NO_RECORDER: Recorder = NoRecorder()

current_recorder: ContextVar[Recorder] = ContextVar("nnmpi_recorder", default=NO_RECORDER)
"""That of the step under way, for what waits inside a layer or a store. A context variable, since
ranks may be threads."""


@contextmanager
def set_recorder(recorder: Recorder) -> Iterator[None]:
    """Within it, layers and stores record their waits there."""
    token = current_recorder.set(recorder)
    try:
        yield
    finally:
        current_recorder.reset(token)
