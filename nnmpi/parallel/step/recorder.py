"""Recorder: what a rank does when, for `--trace`; by default nothing is kept."""

import time
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
