"""What each rank remembers of its collectives, so that a mistake can be named."""

import sys
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np

REMEMBERED = 20


class Call(NamedTuple):
    """One collective, as one rank called it."""

    comm: str
    number: int  # counts the collectives of that communicator
    operation: str
    algorithm: str
    dtype: np.dtype[Any] | None  # its name would take longer to find than a small message
    elements: int
    root: int
    file: str
    line: int


class Guard:
    """The last calls of this rank, and the one it waits in."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque(maxlen=REMEMBERED)
        self.waits: tuple[Call, float] | None = None

    def enter(self, call: Call) -> None:
        """This rank may now be held up by others."""
        self.waits = (call, time.monotonic())

    def leave(self) -> None:
        """It is not any more."""
        self.waits = None


def site() -> tuple[str, int]:
    """The file and line outside this package that called into it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
