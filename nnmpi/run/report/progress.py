"""Progress within an epoch: a bar on a terminal, or a line where nothing was said for a while."""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Protocol

from tqdm import tqdm

from nnmpi.run.report.text import Event

SILENCE = 10.0
"""Seconds after which a line says how far training is."""

FORWARDING = 0.2
"""Seconds in which a launcher forwards a line to its terminal."""


class Progress(Protocol):
    """Shows how far training is."""

    def show(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        """A step was made."""

    def before_line(self) -> None:
        """A line is about to be written."""

    def end(self) -> None:
        """Leave nothing behind."""


class Bar:
    """A bar at the bottom of a terminal; for `pause` seconds after a line it stays away.

    Where the terminal is gone there is no bar, and the run goes on.
    """

    def __init__(self, terminal: IO[str], pause: float = 0) -> None:
        self._terminal, self._pause, self._resume = terminal, pause, 0.0
        self._bar: tqdm[Any] | None = None

    def show(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        if time.monotonic() < self._resume:
            return
        try:
            self._draw(step, total, loss)
        except OSError:
            self._resume = math.inf

    def _draw(self, step: int, total: int, loss: float) -> None:
        if self._bar is None:
            self._bar = tqdm(
                initial=step,
                total=total,
                unit="step",
                leave=False,
                dynamic_ncols=True,
                file=self._terminal,
            )
        self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self._bar.update(step - self._bar.n)

    def before_line(self) -> None:
        self._resume = max(self._resume, time.monotonic() + self._pause)
        if self._bar is not None:
            with suppress(OSError):
                self._bar.clear()

    def end(self) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()
            self._bar = None


class Lines:
    """Calls `write` with an event if no line was written for ten seconds."""

    def __init__(self, write: Callable[[Event], None]) -> None:
        self._write, self._since = write, time.monotonic()

    def show(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        if time.monotonic() - self._since < SILENCE:
            return
        facts = {"step": step, "steps": total, "loss": loss}
        self._write({"event": "progress", **facts, "samples_per_second": samples_per_second})

    def before_line(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        pass


def launcher_has_terminal() -> bool:
    """Whether the launcher writes to a terminal: it gives ranks one even if it writes to a pipe."""
    with suppress(OSError):  # not Linux, or a launcher of another user
        return os.readlink(_launcher_stdout()).startswith(("/dev/pts/", "/dev/tty"))
    return False


def launcher_terminal() -> IO[str] | None:
    """The launcher's terminal; None if this rank may not write to it.

    A launcher forwards whole lines only, so a bar has to be drawn past it.
    """
    with suppress(OSError):
        return open(os.open(_launcher_stdout(), os.O_WRONLY | os.O_NOCTTY), "w")
    return None


def _launcher_stdout() -> str:
    return f"/proc/{os.getppid()}/fd/1"
