"""Shows events of a run as text or JSON, logs them, and draws a progress bar."""

import json
import math
import os
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from nnmpi.comm import Comm, has_launcher
from nnmpi.comm.stderr import print_error
from nnmpi.io.files.outputs import LogMark, opened_log
from nnmpi.io.output.messages import Event, as_text
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none

if TYPE_CHECKING:
    from tqdm import tqdm

RESULTS = ("done", "stopped", "suspended", "complete", "failed", "dry-run")
"""The events that are shown even with `quiet`."""

SILENCE = 10.0
"""Seconds without output after which progress is reported, if there is no progress bar."""


LINES = 25
"""About this many epochs of a long run are shown, besides the first and the last."""


class LostOutputError(Exception):
    """Raised when output cannot be written any more: a full disk, a closed pipe."""


class Report:
    """Shows events, which are flat dictionaries with the key "event", and writes them to a log.

    Standard output gets lines of text, on a terminal with a progress bar below; or, with `as_json`,
    a JSON object per line, as in the log. With `quiet` only the result is shown. A rank that was
    `launched` draws no bar, since its launcher forwards whole lines. If writing to standard output
    fails, the log is still written, and the reverse. The error of the log is raised at the end of
    the run, so that the run can save its model. If `kept` is a list, all events are appended to it.
    """

    _epochs = _epoch = 0  # the number of epochs in total, and so far
    _shows_steps = False  # True if --log-every is given: each "step" event is shown

    def __init__(
        self,
        log: str | None = None,
        quiet: bool = False,
        stdout: IO[str] | None = None,
        launched: bool = False,
        as_json: bool = False,
        appends: bool = False,
        mark: LogMark | None = None,
    ) -> None:
        self.stdout: IO[str] | None = stdout or sys.stdout
        self.quiet, self.as_json = quiet, as_json
        is_terminal = self.stdout is not None and self.stdout.isatty()
        self._shows_bar = is_terminal and not (quiet or as_json or launched)
        self._bar: tqdm[Any] | None = None
        # when a line was last written, when text was last shown, and when an epoch was last shown
        self._last_line = self._last_text = time.monotonic()
        self._last_epoch = 0.0
        self._log = opened_log(log, appends, mark) if log else None
        self.kept: list[Event] | None = None
        self._lost: LostOutputError | None = None  # the error of the log

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end_progress()
        if self._log:
            self._log.close()
        if self._lost and kind is None:
            raise self._lost

    @property
    def describes_ranks(self) -> bool:
        """True if the start event is to list the bytes that each rank stores and sends, which text
        does not show, and which take a simulated step for each group of ranks with equal work."""
        return self.kept is not None or self._log is not None or self.as_json

    def event(self, event: Event) -> None:
        """Shows an event, and writes it to the log."""
        line = json.dumps(_finite(event), allow_nan=False) if self.describes_ranks else ""
        if self.kept is not None:
            self.kept.append(json.loads(line))
        if self._log:
            self._write(line, self._log)
        if self.stdout and self._is_shown(event):
            text = line if self.as_json else as_text(event, self.quiet)
            if text:
                self._write(text, self.stdout)
                self._last_text = self._last_line

    @property
    def mark(self) -> LogMark | None:
        """The LogMark of the log so far, for a checkpoint; None if there is no log file."""
        if not self._log or self._log.closed or not os.path.isfile(self._log.name):
            return None
        return LogMark.of(self._log.name, os.fstat(self._log.fileno()).st_size)

    def _is_shown(self, event: Event) -> bool:
        """Returns True if an event is shown on standard output. As text, a long run shows some
        epochs, and each epoch or step after 10 seconds without output; with --log-every all
        steps."""
        kind, now = event["event"], time.monotonic()
        if kind in ("start", "resumed"):
            self._epochs, self._epoch = event.get("epochs", 0), 0
            self._shows_steps = event.get("options", {}).get("log_every") is not None
        if kind not in ("epoch", "step") or self.quiet or self.as_json:
            return not self.quiet or kind in RESULTS or "passed_over" in event
        if kind == "step":
            return self._shows_steps or now - self._last_text >= SILENCE
        self._epoch += 1
        every = max(1, -(-self._epochs // LINES))
        is_due = self._epoch % every == 0 or self._epoch in (1, self._epochs)
        if is_due or now - self._last_epoch >= SILENCE:
            self._last_epoch = now
            return True
        return False

    def _write(self, text: str, file: IO[str]) -> None:
        """Writes a line and flushes it: readers see it, and a full disk raises here."""
        self._last_line = time.monotonic()
        if self._bar is not None:
            with suppress(OSError):
                self._bar.clear()
        encoding = getattr(file, "encoding", None) or "utf-8"  # may lack letters of a file's name
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        try:
            file.write(text + "\n")
            file.flush()
        except OSError as error:
            name = getattr(file, "name", "output")
            lost = LostOutputError(f"cannot write {name}: {error.strerror}")
            if file is not self._log:
                self.stdout = None
                raise lost from error
            lost.__cause__, self._log, self._lost = error, None, lost
            with suppress(OSError):
                file.close()
            print_error(f"{lost}; the run continues without its log, and will end with an error")

    def progress(self, step: int, total: int, loss: float, rates: Event) -> None:
        """Shows that `step` of `total` steps was made, in a progress bar, or by a line of the log
        and the terminal, with `rates`, if nothing was reported for 10 seconds."""
        if self._shows_bar:
            with suppress(OSError):  # the terminal is gone
                self._show_bar(step, total, loss)
        elif time.monotonic() - self._last_line >= SILENCE:
            facts = {"step": step, "steps": total, "loss": loss}
            self.event({"event": "progress", **facts, **rates})

    def end_progress(self) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()
            self._bar = None

    def _show_bar(self, step: int, total: int, loss: float) -> None:
        if self._bar is None:
            from tqdm import tqdm  # by most ranks it is not needed

            how: dict[str, Any] = {"unit": "step", "leave": False, "dynamic_ncols": True}
            self._bar = tqdm(initial=step, total=total, file=self.stdout, **how)
        self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self._bar.update(step - self._bar.n)


class NullReport(Report):
    """A Report that shows nothing, for all ranks except rank 0."""

    describes_ranks = False

    def __init__(self) -> None:
        super().__init__(quiet=True)

    def event(self, event: Event) -> None:
        """Does nothing."""


def open_report(
    config: Config,
    comm: Comm,
    given: Report | None = None,
    appends: bool = False,
    mark: LogMark | None = None,
) -> Report:
    """Returns the object with which this rank reports events: `given`, or a Report by the config on
    rank 0 and a NullReport on other ranks. Every rank calls it; all raise an error if the log
    cannot be opened. With `appends` the log may have earlier runs; `mark` is where to resume."""

    def opened() -> Report:
        if given or comm.rank:
            return given or NullReport()
        how = config.json, config.append or appends, mark
        return Report(config.log, config.quiet, None, has_launcher(), *how)

    return all_or_none(comm, opened)


# ---- values of JSON


def _finite(value: Any) -> Any:
    """Returns the value with None in place of NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
