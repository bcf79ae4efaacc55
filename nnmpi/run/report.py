"""Report: shows the events of a run as text on a terminal, and as JSON in pipes and in the log."""

import json
import math
import os
import sys
from contextlib import suppress
from typing import IO, Any

from tqdm import tqdm

from nnmpi.run.messages import Event as Event
from nnmpi.run.messages import as_text

RESULTS = ("done", "stopped", "failed", "dry-run")
"""The events that are shown even if `quiet`."""


class LostOutputError(Exception):
    """Standard output or the log can no longer be written: a full disk, a closed pipe."""


class Report:
    """Shows events, which are flat dictionaries with the key "event".

    A terminal gets lines of text above a progress bar; any other output gets a JSON object a line,
    and so does the file `log`. `quiet` leaves only the result. After an error of one of the two
    outputs only the other is written.
    """

    def __init__(
        self,
        log: str | None = None,
        quiet: bool = False,
        stdout: IO[str] | None = None,
        launched: bool = False,
    ) -> None:
        self.stdout: IO[str] | None = stdout or sys.stdout
        self.quiet = quiet
        self.on_terminal = bool(self.stdout and self.stdout.isatty())
        if self.on_terminal and launched:
            self.on_terminal = _launcher_has_terminal()
        self._bar: tqdm[Any] | None = None
        try:
            self._log = open(log, "w", encoding="utf-8") if log else None  # noqa: SIM115
        except OSError as error:
            raise ValueError(
                f"cannot write log {log}: {error.strerror}; name another file"
            ) from None

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, *_: object) -> None:
        self.end_progress()
        if self._log:
            self._log.close()

    def event(self, event: Event) -> None:
        """Show an event, and write it to the log."""
        line, kind = json.dumps(_finite(event), allow_nan=False), event["event"]
        if self._log:
            self._write(line, self._log)
        if self.on_terminal and kind == "failed":  # the command prints the error on stderr
            return
        if self.stdout and (not self.quiet or kind in RESULTS):
            self._write(as_text(event) if self.on_terminal else line, self.stdout)

    def _write(self, text: str, file: IO[str]) -> None:
        """Write a line and flush it, so that readers see it at once, and a full disk is noticed."""
        try:
            tqdm.write(text, file)
            file.flush()
        except OSError as error:
            name = getattr(file, "name", "output")
            if file is self._log:
                self._log = None
                with suppress(OSError):
                    file.close()
            else:
                self.stdout = None
            raise LostOutputError(f"cannot write {name}: {error.strerror}") from error

    def progress(self, step: int, total: int, loss: float) -> None:
        """Update the progress bar, which only a terminal has."""
        if not (self.stdout and self.on_terminal) or self.quiet:
            return
        if self._bar is None:
            self._bar = tqdm(
                total=total, unit="step", leave=False, dynamic_ncols=True, file=self.stdout
            )
        self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self._bar.update(step - self._bar.n)

    def end_progress(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class NullReport(Report):
    """Shows nothing: the report of all ranks but the first."""

    def __init__(self) -> None:
        super().__init__(quiet=True)

    def event(self, event: Event) -> None:
        """Does nothing."""


def _launcher_has_terminal() -> bool:
    """Whether the launcher writes to a terminal: it gives ranks one even if it writes to a pipe."""
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:  # not Linux, or a launcher of another user
        return False


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON lacks: NaN and infinity."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
