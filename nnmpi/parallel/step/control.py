"""StepControl: what the steps of a strategy ask a run, and tell it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class StepControl(NamedTuple):
    """The functions by which steps ask a run for settings and requests, and tell it events."""

    lr_factor: Callable[[int], float]  # what multiplies the learning rates in a step
    request: Callable[[], float]  # what this rank requests after this step: STOPS, SAVES or 0
    steps: Callable[[], int]  # in the whole run
    event: Callable[[dict[str, Any]], None]  # takes an event
    reads: Callable[[int], bool]  # whether something reads the model after so many steps
    launched: Callable[[], None]  # an update was launched, whose outcome is not known
