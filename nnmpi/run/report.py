"""What a run tells: lines for people on a terminal, JSON for programs in pipes and logs."""

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from tqdm import tqdm

from nnmpi.run.messages import Event as Event
from nnmpi.run.messages import sentence

RESULTS = ("done", "stopped", "failed", "dry-run")  # what is shown even when it is to be quiet


class LostOutputError(Exception):
    """What takes the lines takes no more of them: a full disk, a closed pipe."""


def check_output(what: str, path: str, others: Mapping[str, str | None]) -> None:
    """Refuse to write over another file of the run; `others` are paths by option."""
    for option, name in others.items():
        if name is None:
            continue
        other = os.path.expanduser(name) if option == "data" else name
        if _same_file(path, other):
            raise ValueError(f"{what} {path} is the file of {option} too; name another file")


def _same_file(a: str, b: str) -> bool:
    if os.path.exists(a) and os.path.exists(b):
        return os.path.samefile(a, b)
    return os.path.realpath(a) == os.path.realpath(b)


class Report:
    """Takes events and shows them: each is one flat JSON object with an "event" in it.

    On a terminal an event becomes a line of text under a progress bar; anywhere
    else it is printed as it is. `log` gets every event as JSON. `quiet` leaves
    only the result. An output that is lost, or closed from the start, gets no more.
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
        self.pretty = bool(self.stdout and self.stdout.isatty())
        if self.pretty and launched:
            self.pretty = _launcher_has_terminal()
        self._bar: tqdm[Any] | None = None
        try:
            self._log = open(log, "w", encoding="utf-8") if log else None  # noqa: SIM115
        except OSError as error:
            raise ValueError(
                f"cannot write log {log}: {error.strerror}; name another file"
            ) from None

    def __enter__(self) -> "Report":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.end_progress()
        if self._log:
            self._log.close()

    def event(self, event: Event) -> None:
        """Show one event and log it."""
        line, kind = json.dumps(_plain(event), allow_nan=False), event["event"]
        if self._log:
            self._write(line, self._log)
        if self.pretty and kind == "failed":  # people read of it on stderr
            return
        if self.stdout and (not self.quiet or kind in RESULTS):
            self._write(sentence(event) if self.pretty else line, self.stdout)

    def _write(self, text: str, file: IO[str]) -> None:
        """A line, out at once: whoever follows the run sees it, and so does a full disk."""
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
        """Move the bar; there is one on a terminal only."""
        if not (self.stdout and self.pretty) or self.quiet:
            return
        if self._bar is None:
            self._bar = tqdm(
                total=total, unit="step", leave=False, dynamic_ncols=True, file=self.stdout
            )
        self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self._bar.update(step - self._bar.n)

    def end_progress(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _launcher_has_terminal() -> bool:
    """Launchers give ranks a terminal each, even where they write to a pipe themselves."""
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:  # no Linux, or the launcher is another user's
        return False


class Silence(Report):
    """What ranks tell that are not the first."""

    def __init__(self) -> None:
        super().__init__(quiet=True)

    def event(self, event: Event) -> None:
        """Nobody is told."""


def _plain(value: Any) -> Any:
    """The same in what JSON has: there is no number that is none, so that becomes null."""
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
