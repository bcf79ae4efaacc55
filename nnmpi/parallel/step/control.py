"""StepControl: what the steps of a strategy ask a run, and tell it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class StepControl(NamedTuple):
    """What is asked of a run in its steps, and what it is told."""

    lr_factor: Callable[[int], float]  # what multiplies the learning rates in a step
    request: Callable[[], float]  # what this rank requests after this step: STOPS, SAVES or 0
    steps: Callable[[], int]  # in the whole run
    event: Callable[[dict[str, Any]], None]  # takes an event
    reads: Callable[[int], bool]  # whether something reads the model after so many steps
    launched: Callable[[], None]  # an update was launched, whose outcome is not known
