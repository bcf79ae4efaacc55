"""ReportedEvents: the events that a rank has reported, so that repeated steps report none twice.

step 5   start progress step sample on_step 0 on_step 1 evaluation epoch ...     in one order, so
step 6         progress ...                                               the last place says all
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

REPORT_KINDS = (
    *("start", "progress", "step", "on_log", "sample", "on_step", "evaluation", "on_evaluate"),
    *("epoch", "on_epoch", "result", "on_end", "all"),
)
"""Kinds of events, and of calls of callbacks, after a step, in their order."""

EventPosition: TypeAlias = tuple[int, int, int]
"""The position of an event: the step, the number of its kind, and the number of the callback."""


def event_position(step: int, kind: str, callback: int = 0) -> EventPosition:
    """The position of an event or a call in the order of all of them."""
    return step, REPORT_KINDS.index(kind), callback


BEFORE_ALL = event_position(-1, "all")
"""A position before all others."""


class ReportedEvents:
    """The last event and the last call of a callback that this rank has completed.

    events     the position of the last event
    calls      the position of the last call of a callback
    calling    the call that runs now: a loss raised in it came from an operation of the callback
    to_repeat  calls that a loss has interrupted on some rank
    """

    def __init__(self) -> None:
        self.events = self.calls = BEFORE_ALL
        self.calling: EventPosition | None = None
        self.to_repeat = frozenset[EventPosition]()

    def claim(self, step: int, kind: str) -> bool:
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
        self.calling, self.to_repeat = None, self.to_repeat - {position}
        self.calls = max(position, self.calls)

    def is_called(self, position: EventPosition) -> bool:
        """True if a call was completed and need not be repeated."""
        return position <= self.calls and position not in self.to_repeat

    def go_back(self, step: int) -> None:
        """Goes back to a step: events of later steps are reported again."""
        end = event_position(step, "all")
        self.events, self.calls = min(self.events, end), min(self.calls, end)
