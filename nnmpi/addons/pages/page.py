"""The page of runs: reads files of --log and --trace, and writes one HTML file that shows them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from nnmpi.addons.pages import runs
from nnmpi.addons.pages.curves import AXES
from nnmpi.addons.simulator.commands.trace import TraceFile
from nnmpi.addons.simulator.drawing.timeline import Span, Timeline, kinds, style
from nnmpi.io.files.atomic import refusing, replaced
from nnmpi.io.files.outputs import outputs_of
from nnmpi.io.output.log_file import REMEDY, File, events_of, named, numbered, runs_of
from nnmpi.io.output.messages import Event
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import refusing_others

HEAD = b'{"displayTimeUnit"'
"""The first bytes of a trace file, with which no log begins."""


LogOrTrace: TypeAlias = Sequence[Event] | TraceFile
"""The content of a file of --log, or of --trace."""


class LoggedEvents(NamedTuple):
    """A log as the page shows it, with the traces (files of --trace) of its last run."""

    name: str
    events: Sequence[Event]
    traces: Sequence[TraceFile] = ()


def read(file: File) -> LogOrTrace:
    """Reads a file of --log or of --trace; raises ValueError for other files."""
    with suppress(OSError), open(file, "rb") as opened:  # events_of says what is wrong
        if opened.read(len(HEAD)) == HEAD:
            return TraceFile.read(Path(file))
    return events_of(file)


def logs_of(sources: Mapping[str, LogOrTrace]) -> list[LoggedEvents]:
    """Returns the logs in `sources`, by path; each trace belongs to the last run of the log before
    it."""
    logs = [file for file, source in sources.items() if not isinstance(source, TraceFile)]
    names, logged = dict(zip(logs, named(logs), strict=True)), list[LoggedEvents]()
    for file, source in sources.items():
        if not isinstance(source, TraceFile):
            logged.append(LoggedEvents(names[file], source))
        elif logged:
            logged[-1] = logged[-1]._replace(traces=(*logged[-1].traces, source))
    return logged


def of_run(config: Config, kept: Sequence[Event]) -> list[LoggedEvents]:
    """Returns the log, or else the `kept` events, and the trace of a run that has ended."""
    log = Path(config.log or "")
    events = events_of(log) if log.is_file() and log.stat().st_size else kept
    last = events[-1] if events else {}
    told = (path for file, path in outputs_of(config).items() if file.option in last)
    traces = tuple(TraceFile.read(Path(path)) for path in told)  # no other output is told of
    return [LoggedEvents(Path(config.log or config.report or "").stem, events, traces)]


def as_values(logs: Sequence[LoggedEvents], version: int | None = None) -> dict[str, Any]:
    """Returns all values that the page draws, as a dict for JSON; raises ValueError for events of
    another version. `version` says how often running logs have changed."""
    values = list[dict[str, Any]]()
    for log in logs:
        with refusing_others(f"{shown(log.name)} is not a log of nnmpi", REMEDY):
            of_runs = runs_of(log.events)
            values += map(runs.as_values, numbered(log.name, len(of_runs)), of_runs)
        if of_runs:
            values[-1]["timelines"] = [timeline(trace) for trace in log.traces]
    tasks = dict.fromkeys(run["task"] for run in values)
    return {
        "version": version,
        "title": " and ".join(tasks) or "no run yet",
        "axes": AXES,
        "panels": runs.panels(values),
        "runs": values,
    }


# ---- steps of a trace


MOST_SPANS = 200_000  # spans: about 6 MB


def timeline(trace: TraceFile) -> dict[str, Any]:
    """Returns the measured and simulated operations over time, in milliseconds, for JSON, around
    the step of median duration of a long trace."""
    steps = shown_steps(trace)
    measured = trace.timeline(steps[0], len(steps))
    start = min(span.start for k in steps for span in trace.steps[k])
    simulated = tuple(
        span._replace(start=1e3 * span.start, end=1e3 * span.end)
        for span in trace.simulated
        if span.rank < measured.ranks
    )
    both = measured, Timeline(simulated, measured.ranks)
    numbers = {kind: i for i, kind in enumerate(kinds(both))}
    return {
        "name": trace.path.name,
        "ranks": measured.ranks,
        "end": measured.end,
        "median": trace.median_step(),
        "steps": [
            [
                k,
                (min(s.start for s in spans) - start) / 1e3,
                (max(s.end for s in spans) - start) / 1e3,
            ]
            for k in steps
            for spans in [trace.steps[k]]
        ],
        "styles": [(kind, *style(kind)) for kind in numbers],
        "measured": span_columns(measured.spans, numbers),
        "simulated": span_columns(simulated, numbers),
    }


def shown_steps(trace: TraceFile) -> range:
    """Returns the step of median duration and as many of its neighbours as fit into MOST_SPANS
    spans."""
    first = last = middle = trace.median_step()
    room = MOST_SPANS - _span_count(trace, middle)
    while near := [k for k in (last + 1, first - 1) if k in trace.steps]:
        nearest = min(near, key=lambda k: abs(k - middle))
        room -= _span_count(trace, nearest)
        if room < 0:
            break
        first, last = min(first, nearest), max(last, nearest)
    return range(first, last + 1)


def _span_count(trace: TraceFile, step: int) -> int:
    return sum(len(by_step.get(step, ())) for by_step in (trace.steps, trace.background))


def span_columns(spans: Iterable[Span], numbers: Mapping[str, int]) -> dict[str, list[float]]:
    """Returns spans as columns for JSON, by rank and start, with `numbers` for kinds."""
    rows = sorted(spans, key=lambda span: (span.rank, span.start))
    return {
        "rank": [span.rank for span in rows],
        "kind": [numbers[span.kind] for span in rows],
        "micro": [span.micro for span in rows],
        "stage": [span.stage for span in rows],
        "start": [round(span.start, 4) for span in rows],
        "length": [round(span.end - span.start, 4) for span in rows],
    }


# ---- the page as HTML


def write(path: Path, logs: Sequence[LoggedEvents]) -> None:
    """Writes the page of these logs atomically to `path`; raises ValueError if it cannot, and
    leaves the old file."""
    page = html(as_values(logs))
    with refusing(path, "write report", "name another file"), replaced(path, "x") as file:
        file.write(page)


def html(values: Mapping[str, Any]) -> str:
    """Returns the page that shows `values`: page.html, with each {{name}} replaced by a file or by
    values. Texts of logs occur only in the page's JSON, which escapes them, and in its title."""
    folder, parts = files("nnmpi.addons.pages"), {"title": escape(values["title"])}
    parts["data"] = as_json(values)

    def part(name: str) -> str:
        return parts.get(name) or (folder / name).read_text(encoding="utf-8")

    return re.sub(r"\{\{(.+?)\}\}", lambda mark: part(mark[1]), part("page.html"))


def as_json(values: Mapping[str, Any]) -> str:
    """Returns `values` as JSON in ASCII without `<`, for a script element of an HTML page."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
