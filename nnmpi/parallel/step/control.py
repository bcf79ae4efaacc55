"""StepControl: the functions through which steps read settings of the run and report to it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class StepControl(NamedTuple):
    """The functions through which training steps read settings of the run (such as the learning
    rate) and requests to stop or save, and report events."""

    lr_factor: Callable[[int], float]  # the factor of all learning rates in a step
    request: Callable[[], float]  # this rank's request after this step: STOPS, SAVES or 0
    steps: Callable[[], int]  # the number of steps of the whole run
    event: Callable[[dict[str, Any]], None]  # reports an event
    reads: Callable[[int], bool]  # True if something reads the model after this number of steps
    launched: Callable[[], None]  # an update was launched; its outcome is not known yet
