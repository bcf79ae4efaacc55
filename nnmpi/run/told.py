"""Told: what a rank has told of a run, so that a step that is made again is silent.

step 5   start progress sample on_step 0 on_step 1 epoch on_epoch 0 ...     in one order, so
step 6         progress ...                                                 a place says all
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from nnmpi.run.report.messages import Event

KINDS = ("start", "progress", "sample", "on_step", "epoch", "on_epoch", "result", "on_end", "all")
"""What is told after a step, in its order: events, and calls of callbacks."""

OF_LOG = {
    "epoch": "epoch",
    "sample": "sample",
    "done": "result",
    "stopped": "result",
    "suspended": "result",
}
"""What is told by an event of the log."""

Place: TypeAlias = tuple[int, int, int]
"""The step, the number of a kind, and that of a callback."""


def place(step: int, kind: str, callback: int = 0) -> Place:
    """Where something is in what is told."""
    return step, KINDS.index(kind), callback


class Told:
    """The last places that this rank has told.

    events    of events
    calls     of calls of its callbacks
    calling   the call that runs now: a loss in it came from an operation of its own
    """

    def __init__(self) -> None:
        self.events = self.calls = place(-1, "all")
        self.calling: Place | None = None
        self._again = frozenset[Place]()

    def once(self, step: int, kind: str) -> bool:
        """Whether an event is new, which is told from now on."""
        here, before = place(step, kind), self.events
        self.events = max(here, before)
        return here > before

    @contextmanager
    def call(self, here: Place) -> Iterator[None]:
        """Around a call, which is told when it has returned."""
        self.calling = here
        yield
        self.calling, self._again = None, self._again - {here}
        self.calls = max(here, self.calls)

    @property
    def interrupted(self) -> frozenset[Place]:
        """Calls that a loss has interrupted, on some rank, and that were not made again since."""
        return self._again if self.calling is None else self._again | {self.calling}

    def is_called(self, here: Place) -> bool:
        """Whether a call was made, and is not to be made again."""
        return here <= self.calls and here not in self._again

    def go_back(self, step: int) -> None:
        """Goes back to a step: what was told of later steps is told again."""
        end = place(step, "all")
        self.events, self.calls = min(self.events, end), min(self.calls, end)

    def is_in_log(self, log: str) -> None:
        """The first rank is lost, and the log shows what it has told; what it had in hand, it may
        have told or not."""
        before = min(self.events, place(self.events[0], "progress"))
        self.events = max([before, *_places_in(log)])

    def take(self, others: "Told | None", again: frozenset[Place]) -> None:
        """Where this rank was spare, it has told what another one has; calls that were interrupted
        on some rank are made again on all."""
        if others is not None:
            self.events, self.calls = others.events, others.calls
        self.calling, self._again = None, again


def _places_in(log: str) -> Iterator[Place]:
    """The places of the events of the last run in a log, of which the last line may be cut off."""
    found: list[Event] = []
    with suppress(FileNotFoundError), open(log, encoding="utf-8") as file:
        for line in file:
            if line.startswith('{"event": "start"'):
                found.clear()
            if line.endswith("\n"):
                found.append(json.loads(line))
    for event in found:
        kind = OF_LOG.get(event.get("event", ""))
        if kind is not None:
            yield place(event["step" if "step" in event else "steps"], kind)
