"""StepControl: the functions through which steps read settings of the run and report to it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class StepControl(NamedTuple):
    """The functions through which training steps, which know nothing of the run, read its settings
    and tell it what they do.

    lr_factor   (step): the factor of all learning rates in this step
    request     returns this rank's request after the current step: STOPS, SAVES, or 0 for none
    steps       returns the number of steps of the whole run
    event       (event): writes an event, a dict of JSON values, to the log
    reads       (step): True if something reads the model or the result after so many steps, so that
                the host must wait for the device
    version     returns another number after code of the user has run between two steps, so that
                the model may have changed
    launched    is called when the update of a step was launched on a device; whether it is skipped
                is not known yet
    """

    lr_factor: Callable[[int], float]  # the factor of all learning rates in a step
    request: Callable[[], float]  # this rank's request after this step: STOPS, SAVES or 0
    steps: Callable[[], int]  # the number of steps of the whole run
    event: Callable[[dict[str, Any]], None]  # reports an event
    reads: Callable[[int], bool]  # True if something reads the model after this number of steps
    version: Callable[[], int]  # another number after code of the user has run
    launched: Callable[[], None]  # an update was launched; its outcome is not known yet
