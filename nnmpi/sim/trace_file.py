"""Steps of a real run as a Timeline, from the file that `python -m nnmpi.train --trace` wrote."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.sim.timeline import Span, Timeline

DRAWN_AS = dict.fromkeys(("SEND_F", "SEND_B", "RECV_F", "RECV_B", "exchange"), "communicate")
"""Categories of the file that are kinds of spans under another name; others keep theirs."""

INSIDE = ("wait", "communicate")
"""Categories of what lies within an operation."""

Event = dict[str, Any]


class TraceFile(NamedTuple):
    """The events of a file by step."""

    path: Path
    steps: dict[int, list[Event]]
    ranks: int

    @classmethod
    def read(cls, path: Path) -> "TraceFile":
        """Raises ValueError for another file."""
        try:
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
            steps = defaultdict[int, list[Event]](list)
            for event in events:
                if event["ph"] == "X" and "step" in event["args"]:
                    steps[event["args"]["step"]].append(event)
            ranks = 1 + max(event["pid"] for event in events)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}; name another file") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a trace of nnmpi ({type(error).__name__}: {error}); name a file "
                "of python -m nnmpi.train --trace"
            ) from None
        if not steps:
            raise ValueError(f"{path} has no complete step; trace a longer run")
        return cls(path, dict(steps), ranks)

    def median_step(self) -> int:
        """The step whose time is in the middle."""
        times = {step: _end(events) - _start(events) for step, events in self.steps.items()}
        return sorted(times, key=times.__getitem__)[len(times) // 2]

    def timeline(self, first: int, count: int = 1) -> Timeline:
        """What each rank did in so many steps, in milliseconds since the first of them began.

        Raises ValueError for a step that was not recorded.
        """
        if first not in self.steps:
            raise ValueError(
                f"{self.path} has no step {first}: choose one of {min(self.steps)} to "
                f"{max(self.steps)}"
            )
        steps = range(first, first + count)
        events, spans = [e for step in steps for e in self.steps.get(step, [])], list[Span]()
        for rank in range(self.ranks):
            spans += _flat([e for e in events if e["pid"] == rank], _start(events))
        what = f"step {first}" if count == 1 else f"{count} steps from step {first}"
        return Timeline(tuple(spans), self.ranks, f"{what} of {self.path.name}", "ms")


def _start(events: Sequence[Event]) -> float:
    return float(min(e["ts"] for e in events))


def _end(events: Sequence[Event]) -> float:
    return float(max(e["ts"] + e["dur"] for e in events))


def _flat(events: Sequence[Event], start: float) -> Iterator[Span]:
    """The spans of a rank, one after the other: an operation is cut where it waits."""
    operations = sorted((e for e in events if e["cat"] not in INSIDE), key=lambda e: e["ts"])
    waits = sorted((e for e in events if e["cat"] in INSIDE), key=lambda e: e["ts"])
    for operation in operations:
        now, end = operation["ts"], operation["ts"] + operation["dur"]
        while waits and waits[0]["ts"] < end:
            wait = waits.pop(0)
            yield from _span(operation, now, wait["ts"], start)
            now = wait["ts"] + wait["dur"]
            yield from _span(wait, wait["ts"], now, start)
        yield from _span(operation, now, end, start)


def _span(event: Event, begin: float, end: float, start: float) -> Iterator[Span]:
    if begin < end:
        rank, args = event["pid"], event["args"]
        micro, stage = args.get("micro", -1), args.get("stage", 0)
        kind = DRAWN_AS.get(event["cat"], str(event["cat"]))
        yield Span(rank, kind, micro, stage, (begin - start) / 1e3, (end - start) / 1e3)
