"""CallForm: the recordings of a compiled step (`nnmpi.compile`) for calls that differ in numbers
only, and which of these numbers are inputs of the recordings.

    step(x, 0.1, 2)    recorded with both numbers as constants
    step(x, 0.2, 2)    another first number: recorded with it as an input, if the step only computes
                       with it; if it decides by it (if, range, a shape), with constants as before
    step(x, 0.3, 2)    replayed
    step(x, 0.3, 4)    recorded for this second number, or with it as an input too
"""

from collections.abc import Callable, Sequence
from typing import Any

from nnmpi.addons.compile.recorded_step import RecordedStep, UnrecordedError
from nnmpi.addons.compile.step_replay import StepReplay, texts_of


class CallForm:
    """The recordings for calls of a step that differ only in the numbers among their arguments.

    kind    what these calls have in common
    lists   for each `key`, the recording, or None if the step runs as written
    places  the places, among the numbers of a call, of those that are inputs of the recordings
    """

    def __init__(self, kind: Any = None) -> None:
        self.kind = kind
        self.lists = dict[Any, StepReplay | None]()
        self.places, self._constants = list[int](), set[int]()
        self._last: Sequence[str] = ()

    def key(self, numbers: Sequence[Any]) -> tuple[str, ...]:
        """Returns the numbers that are constants of a recording."""
        return texts_of([x for k, x in enumerate(numbers) if k not in self.places])

    def inputs(self, numbers: Sequence[Any]) -> Sequence[Any]:
        """Returns the numbers that are inputs of the recordings."""
        return [numbers[k] for k in self.places]

    def recorded(
        self, numbers: Sequence[Any], record: Callable[[Sequence[int]], RecordedStep]
    ) -> RecordedStep:
        """Returns a recording of the step for these numbers. Those that differ from the numbers of
        the recording before become inputs, if the step can be recorded so.

        record   makes the recording in which the numbers at some places are inputs
        """
        texts, step = texts_of(numbers), None
        changed = {k for k, last in enumerate(self._last) if texts[k] != last}
        self._last = texts
        for k in sorted(changed.difference(self.places, self._constants)):
            inputs = sorted((*self.places, k))
            tried = _tried(record, inputs)
            if tried is None:
                self._constants.add(k)
            else:
                self.places, step = inputs, tried
                self.lists.clear()  # there this number is a constant
        if step is None and self.places:
            step = _tried(record, self.places)
        if step is None:
            self.use_constants()
            step = record(())
        return step

    def use_constants(self) -> None:
        """Makes the numbers that are inputs constants for ever: a recording is for one value."""
        if self.places:
            self._constants.update(self.places)
            self.places = []
            self.lists.clear()


def _tried(
    record: Callable[[Sequence[int]], RecordedStep], inputs: Sequence[int]
) -> RecordedStep | None:
    """Returns a recording in which numbers are inputs; None if the step reads their values."""
    try:
        return record(inputs)
    except (UnrecordedError, ValueError):
        return None
