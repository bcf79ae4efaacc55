"""ReportedEvents: which events a rank has reported, so that steps that are repeated after the loss
of a rank report none twice.

step 5   start progress step sample on_step 0 on_step 1 evaluation epoch ...
step 6         progress ...

Events occur in this order, so the position of the last reported event says which are reported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

REPORT_KINDS = (
    *("start", "progress", "step", "on_log", "sample", "on_step", "evaluation", "on_evaluate"),
    *("epoch", "on_epoch", "result", "on_end", "all"),
)
"""Kinds of events and calls of callbacks after a step, in the order in which they occur."""

EventPosition: TypeAlias = tuple[int, int, int]
"""The position of an event: step, index of its kind in REPORT_KINDS, callback."""


def event_position(step: int, kind: str, callback: int = 0) -> EventPosition:
    """Returns the position of an event (`kind` such as "step"), or of a call of callback number
    `callback` (`kind` such as "on_step"), in the order in which a run makes all of them."""
    return step, REPORT_KINDS.index(kind), callback


BEFORE_ALL = event_position(-1, "all")
"""A position before every event."""


class ReportedEvents:
    """How far this rank has come in reporting events and calling callbacks, as positions.

    events     the position of the last reported event
    calls      the position of the last completed call of a callback
    calling    the position of the call that runs now, if any: a RankLost raised in it interrupts it
    to_repeat  positions of calls that the loss of a rank has interrupted on some rank
    """

    def __init__(self) -> None:
        self.events = self.calls = BEFORE_ALL
        self.calling: EventPosition | None = None
        self.to_repeat = frozenset[EventPosition]()

    def claim(self, step: int, kind: str) -> bool:
        """Records an event as reported; returns False if it was reported before a rank was lost."""
        position, last = event_position(step, kind), self.events
        self.events = max(position, last)
        return position > last

    @contextmanager
    def call(self, position: EventPosition) -> Iterator[None]:
        """A context of a callback's call, which counts as completed at its end."""
        self.calling = position
        yield
        self.calling, self.to_repeat = None, self.to_repeat - {position}
        self.calls = max(position, self.calls)

    def is_called(self, position: EventPosition) -> bool:
        """True if the call at this position was completed and need not be repeated."""
        return position <= self.calls and position not in self.to_repeat

    def go_back(self, step: int) -> None:
        """Called when the run goes back to a step: events of later steps will be reported again."""
        end = event_position(step, "all")
        self.events, self.calls = min(self.events, end), min(self.calls, end)
