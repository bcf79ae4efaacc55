"""ReportedEvents: the events that a rank has reported, so that repeated steps report none twice.

step 5   start progress step sample on_step 0 on_step 1 evaluation epoch ...     in one order, so
step 6         progress ...                                               the last place says all
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

KINDS = (
    *("start", "progress", "step", "on_log", "sample", "on_step", "evaluation", "on_evaluate"),
    *("epoch", "on_epoch", "result", "on_end", "all"),
)
"""Kinds of events, and of calls of callbacks, after a step, in their order."""

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

EventPosition: TypeAlias = tuple[int, int, int]
"""The position of an event: the step, the number of its kind, and the number of the callback."""


def event_position(step: int, kind: str, callback: int = 0) -> EventPosition:
    """The position of an event or a call in the order of all of them."""
    return step, KINDS.index(kind), callback


BEFORE_ALL = event_position(-1, "all")
"""A position before all others."""


class ReportedEvents:
    """The last event and the last call of a callback that this rank has completed.

    events    the position of the last event
    calls     the position of the last call of a callback
    calling   the call that runs now: a loss raised in it came from an operation of the callback
    runs      how many runs the log had before this one
    """

    def __init__(self) -> None:
        self.events = self.calls = BEFORE_ALL
        self.calling: EventPosition | None = None
        self._to_repeat = frozenset[EventPosition]()
        self.runs = 0

    def once(self, step: int, kind: str) -> bool:
        """True if an event has not been reported yet; records it as reported."""
        position, last = event_position(step, kind), self.events
        self.events = max(position, last)
        return position > last

    @contextmanager
    def call(self, position: EventPosition) -> Iterator[None]:
        """A context around a call of a callback; the call counts as completed when it has
        returned."""
        self.calling = position
        yield
        self.calling, self._to_repeat = None, self._to_repeat - {position}
        self.calls = max(position, self.calls)

    @property
    def interrupted(self) -> frozenset[EventPosition]:
        """Calls that a loss has interrupted on some rank, and that have not been repeated since."""
        return self._to_repeat if self.calling is None else self._to_repeat | {self.calling}

    def is_called(self, position: EventPosition) -> bool:
        """True if a call was completed and need not be repeated."""
        return position <= self.calls and position not in self._to_repeat

    def go_back(self, step: int) -> None:
        """Goes back to a step: events of later steps are reported again."""
        end = event_position(step, "all")
        self.events, self.calls = min(self.events, end), min(self.calls, end)

    def read_log(self, log: str) -> None:
        """Takes from the log what the former rank 0, which is lost, had reported; its last event
        may be missing from the log."""
        runs = runs_in(log)
        if len(runs) <= self.runs:  # rank 0 was lost before it reported the start
            self.events = BEFORE_ALL
            return
        earlier = min(self.events, event_position(self.events[0], "progress"))
        self.events = max([earlier, *_positions_of(runs[-1])])

    def adopt(self, others: "ReportedEvents | None", again: frozenset[EventPosition]) -> None:
        """Takes over what another rank has reported, if this rank was spare and has not reported
        more before; calls that were interrupted on some rank are repeated on all."""
        if others is not None:
            self.events = max(self.events, others.events)
            self.calls, self.runs = max(self.calls, others.calls), others.runs
        self.calling, self._to_repeat = None, again


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


def _positions_of(lines: Iterable[str]) -> Iterator[EventPosition]:
    for event in map(json.loads, lines):
        kind = KIND_OF_EVENT.get(event.get("event", ""))
        if kind is not None:
            yield event_position(event["step" if "step" in event else "steps"], kind)
