"""Files of --log and --trace for a page."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import refusing_others
from nnmpi.run.page import runs, timelines
from nnmpi.run.report.log_file import REMEDY, File, events_of, named, numbered, runs_of
from nnmpi.run.report.messages import Event
from nnmpi.run.report.plot import AXES
from nnmpi.sim.commands.trace import TraceFile

HEAD = b'{"displayTimeUnit"'
"""What a file of --trace begins with, and none of --log."""

LogOrTrace: TypeAlias = Sequence[Event] | TraceFile
"""What is in a file of --log, or of --trace."""


class LoggedEvents(NamedTuple):
    """The events of a log, and the traces that belong to its last run."""

    name: str
    events: Sequence[Event]
    traces: Sequence[TraceFile] = ()


def read(file: File) -> LogOrTrace:
    """Raises ValueError for a file that cannot be read, or is neither a log nor a trace."""
    with suppress(OSError), open(file, "rb") as opened:  # events_of says what is wrong
        if opened.read(len(HEAD)) == HEAD:
            return TraceFile.read(Path(file))
    return events_of(file)


def logs_of(sources: Mapping[str, LogOrTrace]) -> list[LoggedEvents]:
    """The logs among these files; a trace is of the last run of the log that is named before it."""
    logs = [file for file, source in sources.items() if not isinstance(source, TraceFile)]
    names, found = dict(zip(logs, named(logs), strict=True)), list[LoggedEvents]()
    for file, source in sources.items():
        if not isinstance(source, TraceFile):
            found.append(LoggedEvents(names[file], source))
        elif found:
            found[-1] = found[-1]._replace(traces=(*found[-1].traces, source))
    return found


def of_run(config: Config, kept: Sequence[Event]) -> list[LoggedEvents]:
    """What the files of a run have that has ended, or else the events that its report has kept."""
    log = Path(config.log or "")
    events = events_of(log) if log.is_file() and log.stat().st_size else kept
    path = config.trace if any("trace" in event for event in events[-1:]) else None
    traces = (TraceFile.read(Path(path)),) if path else ()
    return [LoggedEvents(Path(config.log or config.report or "").stem, events, traces)]


def as_values(logs: Sequence[LoggedEvents], version: int | None = None) -> dict[str, Any]:
    """What the page draws, as JSON has it; raises ValueError for events that are none of nnmpi.

    version: how often files have changed that are followed
    """
    found = list[dict[str, Any]]()
    for log in logs:
        with refusing_others(f"{shown(log.name)} is not a log of nnmpi", REMEDY):
            of_runs = runs_of(log.events)
            found += map(runs.as_values, numbered(log.name, len(of_runs)), of_runs)
        if of_runs:
            found[-1]["timelines"] = [timelines.as_values(trace) for trace in log.traces]
    tasks = dict.fromkeys(run["task"] for run in found)
    return {
        "version": version,
        "title": " and ".join(tasks) or "no run yet",
        "axes": AXES,
        "panels": runs.panels(found),
        "runs": found,
    }
