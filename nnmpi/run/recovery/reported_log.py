"""Events that were reported before a loss, as the remaining ranks know them, or read in the log."""

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
"""The kind that each event of the log belongs to."""

RUN_STARTS = ('{"event": "start"', '{"event": "resumed"')
"""The beginnings of the first line of a run in a log."""


def runs_in(log: str | None) -> list[list[str]]:
    """The complete lines of each run in a log, whose last line may be cut off; empty if there is no
    file."""
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
    """Takes from the log what the former rank 0, which is lost, had reported; its last event may be
    missing from the log, which had so many runs before this one."""
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
    """Calls that a loss has interrupted on some rank, and that have not been repeated since."""
    calling = reported.calling
    return reported.to_repeat if calling is None else reported.to_repeat | {calling}


def adopt_reported(
    reported: ReportedEvents, others: ReportedEvents | None, again: frozenset[EventPosition]
) -> None:
    """Takes over what another rank has reported, if this rank was spare and has not reported more
    before; calls that were interrupted on some rank are repeated on all."""
    if others is not None:
        reported.events = max(reported.events, others.events)
        reported.calls = max(reported.calls, others.calls)
    reported.calling, reported.to_repeat = None, again
