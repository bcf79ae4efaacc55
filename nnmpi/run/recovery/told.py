"""Told: what a rank has told of a run, so that a step that is made again is silent."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager


class Told:
    """The last step after which each thing was told: an event, or a call of one callback.

    calling   the callback that runs now: a loss in it came from a call of its own
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}
        self.calling: Hashable | None = None

    def is_new(self, what: Hashable, step: int) -> bool:
        """Whether this is told for the first time after this step."""
        return step > self._last.get(what, -1)

    def note(self, what: Hashable, step: int) -> None:
        """It is told now."""
        self._last[what] = max(step, self._last.get(what, -1))

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

    def go_back(self, step: int, *others: Hashable) -> None:
        """What was told of later steps is told again; without `others`, all of it."""
        for what in others or [*self._last]:
            if what in self._last:
                self._last[what] = min(step, self._last[what])

    def is_known(self, last: Mapping[Hashable, int]) -> None:
        """The log shows what was told, by the first rank until then."""
        self._last |= last
