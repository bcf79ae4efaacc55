"""Files of --log and --trace for a page, which are read as far as they have grown."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.config import Config
from nnmpi.quoting import shown
from nnmpi.run.page import runs, timelines
from nnmpi.run.report.log_file import (
    BEGINS,
    LONGEST_LOG,
    REMEDY,
    File,
    named,
    numbered,
    parsed_events,
    runs_of,
)
from nnmpi.run.report.messages import Event
from nnmpi.run.report.plot import AXES
from nnmpi.sim.commands.trace import TraceFile
from nnmpi.user_files import content

HEAD = b'{"displayTimeUnit"'
"""What a file of --trace begins with, and none of --log."""


class LoggedEvents(NamedTuple):
    """The events of a log, and the traces that belong to its last run."""

    name: str
    events: Sequence[Event]
    traces: Sequence[TraceFile] = ()


class GrowingFile:
    """A file; `events` or `trace` are what it has so far."""

    def __init__(self, path: File) -> None:
        self.path, self.events, self._at = Path(path), list[Event](), 0
        self.trace: TraceFile | None = None
        self._version = 0, 0, 0

    def read(self) -> bool:
        """Reads what is new; returns whether there was anything. Raises ValueError for a file that
        cannot be read, or is neither a log nor a trace."""
        what = f"log {shown(self.path)}"
        try:
            with self.path.open("rb") as file:
                now, head = os.fstat(file.fileno()), file.read(len(HEAD))
        except OSError as error:
            raise ValueError(f"cannot read {what}: {error.strerror}; {REMEDY}") from None
        version = now.st_ino, now.st_size, now.st_mtime_ns
        if version == self._version:
            return False
        if now.st_size < self._at or now.st_ino != self._version[0]:
            self.events, self._at = [], 0
        self._version = version
        if head == HEAD:
            self.trace = TraceFile.read(self.path)
            return True
        text = content(self.path, what, LONGEST_LOG, REMEDY, start=self._at)
        whole = text[: text.rfind(b"\n") + 1]
        self.events += parsed_events(shown(self.path), whole, len(self.events) + 1)
        self._at += len(whole)
        if self.events and self.events[0]["event"] not in BEGINS:
            raise ValueError(f"{shown(self.path)} is not a log: it has no start event in line 1")
        return True


def logs_of(sources: Sequence[GrowingFile]) -> list[LoggedEvents]:
    """The logs that have events; a trace is of the last run of the log that is named before it."""
    logs = [source for source in sources if source.events]
    names = dict(zip(logs, named([source.path for source in logs]), strict=True))
    found = list[LoggedEvents]()
    for source in sources:
        if source in names:
            found.append(LoggedEvents(names[source], source.events))
        elif source.trace and found:
            found[-1] = found[-1]._replace(traces=(*found[-1].traces, source.trace))
    return found


def of_run(config: Config, kept: Sequence[Event]) -> list[LoggedEvents]:
    """What the files of a run have that has ended, or else the events that its report has kept."""
    log = GrowingFile(config.log or "")
    if log.path.is_file():
        log.read()
    events = log.events or kept
    path = config.trace if any("trace" in event for event in events[-1:]) else None
    traces = (TraceFile.read(Path(path)),) if path else ()
    return [LoggedEvents(Path(config.log or config.report or "").stem, events, traces)]


def as_values(logs: Sequence[LoggedEvents], version: int | None = None) -> dict[str, Any]:
    """What the page draws, as JSON has it; raises ValueError for events that are none of nnmpi.

    version: how often files have changed that are followed
    """
    found = list[dict[str, Any]]()
    for log in logs:
        try:
            of_runs = runs_of(log.events)
            found += map(runs.as_values, numbered(log.name, len(of_runs)), of_runs)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"is not a log of nnmpi ({type(error).__name__}: {shown(error)})"
            raise ValueError(f"{shown(log.name)} {what}; {REMEDY}") from None
        if of_runs:
            found[-1]["timelines"] = [timelines.as_values(trace) for trace in log.traces]
    return {"version": version, "axes": AXES, "panels": runs.panels(found), "runs": found}
