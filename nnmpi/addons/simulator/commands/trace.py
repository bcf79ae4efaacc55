"""The subcommand `trace` of `nnmpi.simulate`: draws steps of a run with `nnmpi.train --trace`."""

import argparse
import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.addons.simulator.drawing.svg import svg
from nnmpi.addons.simulator.drawing.timeline import BACKGROUND, GAPS, Span, Timeline, draw
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import content, parsed, refusing_others

HELP = "steps of a real run"

DRAWN_AS = dict.fromkeys(("SEND_F", "SEND_B", "RECV_F", "RECV_B", "exchange"), "communicate")
"""The kinds of spans as which categories of the file are drawn, if they have another name."""

LONGEST_FILE = 500_000_000  # bytes: a few million events


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand `trace`."""
    p.add_argument("file", type=Path, metavar="FILE", help="of python -m nnmpi.train --trace")
    p.add_argument("--step", type=int, metavar="K", help="default: the step with the median time")
    p.add_argument("--steps", type=int, default=1, metavar="N", help="so many steps (default 1)")
    p.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")


def run(options: argparse.Namespace) -> str:
    """Returns the output of the subcommand `trace`: steps of a run, drawn as text."""
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps} must be at least 1")
    if options.svg and options.svg.resolve() == options.file.resolve():
        raise ValueError(f"--svg {options.svg} is the trace itself; name another file")
    trace = TraceFile.read(options.file)
    first = trace.median_step() if options.step is None else options.step
    timeline = trace.timeline(first, options.steps)
    if options.svg:
        options.svg.write_text(svg([timeline]), encoding="utf-8")
    return f"{draw([timeline])}\n\n{timeline.end:.4g} ms"


class TraceFile(NamedTuple):
    """The content of a trace file, written by --trace.

    steps        a dict: step -> what all ranks did in it, as spans in microseconds; the kind is the
                 category in the file, such as F or B
    background   the same for communication that went on beside the steps
    ranks        the number of ranks
    simulated    spans of a simulated step of a pipeline, in seconds
    """

    path: Path
    steps: dict[int, list[Span]]
    background: dict[int, list[Span]]
    ranks: int
    simulated: tuple[Span, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "TraceFile":
        """Reads a trace file; raises ValueError if the file is no trace, or too long."""
        name = shown(path)
        fewer = "trace fewer steps or fewer ranks"
        text = content(path, name, LONGEST_FILE, "name another file", fewer)
        problem = f"{name} is not a trace of nnmpi"
        with refusing_others(problem, "name a file of python -m nnmpi.train --trace"):
            parsed_file = parsed(json.loads, text.decode())
            events, about = parsed_file["traceEvents"], parsed_file.get("otherData", {})
            steps = defaultdict[int, list[Span]](list)
            background = defaultdict[int, list[Span]](list)
            for event in events:
                if event["ph"] == "X" and "step" in event["args"]:
                    span = _span(event)
                    by_step = background if span.kind == BACKGROUND else steps
                    by_step[event["args"]["step"]].append(span)
            simulated = tuple(Span(*row) for row in about.get("simulated", ()))
            numbers = {
                span.rank for spans in (*steps.values(), *background.values()) for span in spans
            }
            if numbers - {*range(len(events))}:
                raise ValueError("a rank number is below 0, or too large for this number of events")
        if not steps:
            raise ValueError(f"{name} has no complete step; trace a longer run")
        return cls(path, dict(steps), dict(background), 1 + max(numbers), simulated)

    def median_step(self) -> int:
        """The number of the step that takes the median time."""
        times = {
            step: max(e.end for e in events) - min(e.start for e in events)
            for step, events in self.steps.items()
        }
        return sorted(times, key=times.__getitem__)[len(times) // 2]

    def timeline(self, first: int, count: int = 1) -> Timeline:
        """Returns `count` steps from `first` on, in milliseconds; ValueError if one is not
        recorded."""
        wanted = range(first, first + count)
        missing = next((step for step in wanted if step not in self.steps), None)
        if missing is not None:
            steps = f"the {count} steps from {first}" if count > 1 else f"step {first}"
            raise ValueError(
                f"{shown(self.path)} does not have {steps}: choose among {min(self.steps)} to "
                f"{max(self.steps)}"
            )
        events_by_rank: list[list[Span]] = [[] for _ in range(self.ranks)]
        for step in wanted:
            for event in self.steps[step]:
                events_by_rank[event.rank].append(event)
        start = min(event.start for step in wanted for event in self.steps[step])
        end = max(event.end for events in events_by_rank for event in events)
        spans = [span for events in events_by_rank for span in _flat(events, start)]
        for event in (event for step in wanted for event in self.background.get(step, ())):
            spans += _cut(event, max(event.start, start), min(event.end, end), start)
        title = f"step {first}" if count == 1 else f"{count} steps from step {first}"
        return Timeline(tuple(spans), self.ranks, f"{title} of {shown(self.path.name)}", "ms")


def _span(event: dict[str, Any]) -> Span:
    """Converts a trace's event with a duration to a span, in nanoseconds."""
    args, start, duration = event["args"], float(event["ts"]), float(event["dur"])
    at = event["pid"], str(event["cat"]), args.get("micro", -1), args.get("stage", 0)
    return Span(*at, round(start, 3), round(start + duration, 3))


def _flat(events: Sequence[Span], start: float) -> Iterator[Span]:
    """Yields a rank's spans without overlap, in milliseconds: an operation is cut around a wait."""
    operations = sorted((e for e in events if e.kind not in GAPS), key=lambda e: e.start)
    waits = deque(sorted((e for e in events if e.kind in GAPS), key=lambda e: e.start))
    for operation in operations:
        since = operation.start
        while waits and waits[0].start < operation.end:
            wait = waits.popleft()
            yield from _cut(operation, since, wait.start, start)
            since = wait.end
            yield from _cut(wait, wait.start, since, start)
        yield from _cut(operation, since, operation.end, start)


def _cut(event: Span, begin: float, end: float, start: float) -> Iterator[Span]:
    """Yields the part of a span (what a rank did in an interval) from `begin` to `end`, unless it
    is empty. Its times are converted from microseconds to milliseconds after `start`."""
    if begin < end:
        kind = DRAWN_AS.get(event.kind, event.kind)
        yield event._replace(kind=kind, start=(begin - start) / 1e3, end=(end - start) / 1e3)
