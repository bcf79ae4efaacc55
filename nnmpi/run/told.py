"""ToldBefore: what a rank has told of a run, so that a step that is made again is silent."""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from nnmpi.run.report.messages import Event

KINDS = {
    "epoch": "epoch",
    "sample": "sample",
    "done": "result",
    "stopped": "result",
    "suspended": "result",
}
"""What is told by an event of the log."""


class ToldBefore:
    """The last step after which each thing was told: an event, or a call of one callback.

    calling   the callback that runs now: a loss in it came from a call of its own
    """

    def __init__(self) -> None:
        self.last: dict[Hashable, int] = {}
        self.calling: Hashable | None = None

    def is_new(self, what: Hashable, step: int) -> bool:
        """Whether this is told for the first time after this step."""
        return step > self.last.get(what, -1)

    def note(self, what: Hashable, step: int) -> None:
        """It is told now."""
        self.last[what] = max(step, self.last.get(what, -1))

    def once(self, what: Hashable, step: int) -> bool:
        """Whether it is told for the first time, which is noted."""
        found = self.is_new(what, step)
        self.note(what, step)
        return found

    @contextmanager
    def call(self, what: Hashable, step: int) -> Iterator[None]:
        """Around the call of a callback, which is noted when it has returned."""
        self.calling = what
        yield
        self.calling = None
        self.note(what, step)

    def go_back(self, step: int, what: Hashable | None = None) -> None:
        """What was told of later steps is told again: all of it, or one thing."""
        for one in [*self.last] if what is None else [what]:
            self.last[one] = min(step, self.last.get(one, -1))

    def is_in_log(self, log: str) -> None:
        """The first rank is lost, and the log shows what it has told; what it had in hand, it may
        have told or not."""
        for told in KINDS.values():
            self.last.pop(told, None)
        for event in _last_run(log):
            kind = KINDS.get(event.get("event", ""))
            if kind is not None:
                self.note(kind, event["step" if "step" in event else "steps"])

    def take(self, told: Mapping[Hashable, int], again: Iterable[tuple[Hashable, int]]) -> None:
        """Where this rank was spare, it has told what the others have; a callback that was
        interrupted is called again on all ranks."""
        self.last |= told
        for what, step in again:
            self.go_back(step - 1, what)
        self.calling = None


def _last_run(log: str) -> list[Event]:
    """The events of the last run in a log, of which the last line may be cut off."""
    found: list[Event] = []
    with suppress(FileNotFoundError), open(log, encoding="utf-8") as file:
        for line in file:
            if line.startswith('{"event": "start"'):
                found.clear()
            if line.endswith("\n"):
                found.append(json.loads(line))
    return found
