"""The subcommand `trace` of `python -m nnmpi.simulate`: steps of a real run, drawn.

They come from the file that `python -m nnmpi.train --trace` wrote.
"""

import argparse
import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.sim.svg import svg
from nnmpi.sim.timeline import Span, Timeline, draw

HELP = "steps of a real run"

DRAWN_AS = dict.fromkeys(("SEND_F", "SEND_B", "RECV_F", "RECV_B", "exchange"), "communicate")
"""Categories of the file that are kinds of spans under another name; others keep theirs."""

INSIDE = ("wait", "communicate")
"""Categories of what lies within an operation."""


def add_options(p: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    p.add_argument("file", type=Path, metavar="FILE", help="of python -m nnmpi.train --trace")
    p.add_argument("--step", type=int, metavar="K", help="default: the one of median time")
    p.add_argument("--steps", type=int, default=1, metavar="N", help="so many steps (default 1)")
    p.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")


def run(options: argparse.Namespace) -> str:
    """The output of `trace`."""
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
    """The events of a file by step: spans in microseconds, whose kinds are categories."""

    path: Path
    steps: dict[int, list[Span]]
    ranks: int

    @classmethod
    def read(cls, path: Path) -> "TraceFile":
        """Raises ValueError for another file."""
        try:
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
            steps = defaultdict[int, list[Span]](list)
            for event in events:
                if event["ph"] == "X" and "step" in event["args"]:
                    steps[int(event["args"]["step"])].append(_event(event, len(events)))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}; name another file") from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a trace of nnmpi ({type(error).__name__}: {error}); name a file "
                "of python -m nnmpi.train --trace"
            ) from None
        if not steps:
            raise ValueError(f"{path} has no complete step; trace a longer run")
        ranks = 1 + max(span.rank for spans in steps.values() for span in spans)
        return cls(path, dict(steps), ranks)

    def median_step(self) -> int:
        """The step whose time is in the middle."""
        times = {
            step: max(e.end for e in events) - min(e.start for e in events)
            for step, events in self.steps.items()
        }
        return sorted(times, key=times.__getitem__)[len(times) // 2]

    def timeline(self, first: int, count: int = 1) -> Timeline:
        """What each rank did in so many steps, in milliseconds since the first of them began.

        Raises ValueError for steps that were not recorded.
        """
        steps = sorted(step for step in self.steps if first <= step < first + count)
        if len(steps) < count:
            missing = steps[-1] + 1 if first in self.steps else first
            raise ValueError(
                f"{self.path} has no step {missing}: choose one of {min(self.steps)} to "
                f"{max(self.steps)}"
            )
        events, spans = [e for step in steps for e in self.steps[step]], list[Span]()
        start = min(e.start for e in events)
        for rank in range(self.ranks):
            spans += _flat([e for e in events if e.rank == rank], start)
        what = f"step {first}" if count == 1 else f"{count} steps from step {first}"
        return Timeline(tuple(spans), self.ranks, f"{what} of {self.path.name}", "ms")


def _event(event: dict[str, Any], most: int) -> Span:
    """A complete event; raises KeyError, TypeError or ValueError if it is not one of nnmpi."""
    args, rank = event["args"], int(event["pid"])
    start, duration = float(event["ts"]), float(event["dur"])
    if not 0 <= rank < most or not isfinite(start) or not 0 <= duration < float("inf"):
        raise ValueError(f"an event of rank {rank} from {start} for {duration}")
    micro, stage = int(args.get("micro", -1)), int(args.get("stage", 0))
    return Span(rank, str(event["cat"]), micro, stage, start, start + duration)


def _flat(events: Sequence[Span], start: float) -> Iterator[Span]:
    """The spans of a rank, one after the other: an operation is cut where it waits."""
    operations = sorted((e for e in events if e.kind not in INSIDE), key=lambda e: e.start)
    waits = deque(sorted((e for e in events if e.kind in INSIDE), key=lambda e: e.start))
    for operation in operations:
        now = operation.start
        while waits and waits[0].start < operation.end:
            wait = waits.popleft()
            yield from _cut(operation, now, wait.start, start)
            now = wait.end
            yield from _cut(wait, wait.start, now, start)
        yield from _cut(operation, now, operation.end, start)


def _cut(event: Span, begin: float, end: float, start: float) -> Iterator[Span]:
    """A part of an event, in milliseconds, if it is not empty."""
    if begin < end:
        kind = DRAWN_AS.get(event.kind, event.kind)
        yield event._replace(kind=kind, start=(begin - start) / 1e3, end=(end - start) / 1e3)
