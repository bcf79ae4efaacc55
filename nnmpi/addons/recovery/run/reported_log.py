"""Finds out which events were reported before a loss: from the remaining ranks, or from the log."""

import json
import os
from collections.abc import Iterable, Iterator

from nnmpi.run.reported_events import BEFORE_ALL, EventPosition, ReportedEvents, event_position

KIND_OF_EVENT = {
    "epoch": "epoch",
    "step": "step",
    "sample": "sample",
    "evaluation": "evaluation",
    "done": "result",
    "stopped": "result",
    "suspended": "result",
}
"""By event of the log, its kind in REPORT_KINDS."""

RUN_STARTS = ('{"event": "start"', '{"event": "resumed"')
"""How the first line of a run in a log may begin."""


def runs_in(log: str | None) -> list[list[str]]:
    """Returns the lines of each run in a log, without an incomplete last line, if there is one."""
    runs = list[list[str]]()
    if log and os.path.isfile(log):
        with open(log, encoding="utf-8") as file:
            for line in file:
                if line.startswith(RUN_STARTS):
                    runs.append([])
                if runs and line.endswith("\n"):
                    runs[-1].append(line)
    return runs


def read_log(reported: ReportedEvents, log: str, runs_before: int) -> None:
    """Reads from the log which events the lost rank 0 had reported, and sets `reported`. Its last
    event may be missing; `runs_before` is the number of earlier runs in the log."""
    runs = runs_in(log)
    if len(runs) <= runs_before:  # rank 0 was lost before it reported the start
        reported.events = BEFORE_ALL
        return
    earlier = min(reported.events, event_position(reported.events[0], "progress"))
    reported.events = max([earlier, *_positions_of(runs[-1])])


def _positions_of(lines: Iterable[str]) -> Iterator[EventPosition]:
    for event in map(json.loads, lines):
        kind = KIND_OF_EVENT.get(event.get("event", ""))
        if kind is not None:
            yield event_position(event["step" if "step" in event else "steps"], kind)


def interrupted(reported: ReportedEvents) -> frozenset[EventPosition]:
    """Returns the calls of callbacks that were interrupted by the loss of a rank and have not been
    repeated yet, as positions in the order of events."""
    calling = reported.calling
    return reported.to_repeat if calling is None else reported.to_repeat | {calling}


def adopt_reported(
    reported: ReportedEvents, others: ReportedEvents | None, again: frozenset[EventPosition]
) -> None:
    """Adds to `reported`, on a rank that was spare, the events that `others` have reported. Calls
    of callbacks in `again`, which were interrupted on some rank, are repeated on all."""
    if others is not None:
        reported.events = max(reported.events, others.events)
        reported.calls = max(reported.calls, others.calls)
    reported.calling, reported.to_repeat = None, again
