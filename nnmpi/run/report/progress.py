"""The bar that shows progress within an epoch, and the terminal that it is drawn on."""

import math
import os
import time
from contextlib import suppress
from typing import IO, Any

from tqdm import tqdm

FORWARDING = 0.2
"""Seconds in which a launcher forwards a line to its terminal."""


class Bar:
    """A bar at the bottom of a terminal; for `pause` seconds after a line it stays away.

    Where the terminal is gone there is no bar, and the run goes on.
    """

    def __init__(self, terminal: IO[str], pause: float = 0) -> None:
        self._terminal, self._pause, self._resume = terminal, pause, 0.0
        self._bar: tqdm[Any] | None = None

    def show(self, step: int, total: int, loss: float) -> None:
        """A step was made."""
        if time.monotonic() < self._resume:
            return
        how: dict[str, Any] = {"unit": "step", "leave": False, "dynamic_ncols": True}
        try:
            if self._bar is None:
                self._bar = tqdm(initial=step, total=total, file=self._terminal, **how)
            self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update(step - self._bar.n)
        except OSError:
            self._resume = math.inf

    def before_line(self) -> None:
        """A line is about to be written."""
        self._resume = max(self._resume, time.monotonic() + self._pause)
        if self._bar is not None:
            with suppress(OSError):
                self._bar.clear()

    def end(self) -> None:
        """Leaves nothing behind."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()
            self._bar = None


def launcher_terminal() -> IO[str] | None:
    """The launcher's terminal; None if it writes elsewhere, or this rank may not write to it.

    Ranks have terminals of their own even if the launcher writes to a pipe. It forwards whole lines
    only, so a bar has to be drawn past it.
    """
    stdout = f"/proc/{os.getppid()}/fd/1"
    with suppress(OSError):  # not Linux, or a launcher of another user
        if os.readlink(stdout).startswith(("/dev/pts/", "/dev/tty")):
            return open(os.open(stdout, os.O_WRONLY | os.O_NOCTTY), "w")
    return None
