"""When checkpoints are due, and when a run has to end to keep within its time limit.

The time limit reserves twice the longest time between two steps, and twice the time of a write.
"""

import math
from collections.abc import Callable

from nnmpi.options import value_forms
from nnmpi.options.config import Config


def read_every(config: Config) -> int | None:
    """Returns the number of steps between two checkpoints; None if steps do not determine them."""
    number, unit = _interval(config)
    return int(number) if unit == "steps" else None


def _interval(config: Config) -> tuple[float, str]:
    """Returns number and unit of --save-every; infinity without the option."""
    return value_forms.interval(config.save_every) if config.save_every else (math.inf, "")


class SaveTimes:
    """Tells when checkpoints are due, by steps, epochs or a clock, and when the time limit is
    reached.

    `steps` is the number of steps between two checkpoints, or None if steps do not determine them.
    `began` is when the run began, by `clock`.
    """

    def __init__(self, config: Config, began: float, clock: Callable[[], float]) -> None:
        self._every, self._unit = _interval(config)
        self.steps = read_every(config)
        limit = value_forms.duration(config.time_limit) if config.time_limit else math.inf
        self._clock = clock
        self._saved = self._asked = clock()
        self._end, self._longest, self._write = began + limit, 0.0, 0.0

    def begin(self) -> None:
        """Records that steps begin: the time before is no step's."""
        self._asked = self._clock()

    def after_steps(self, before: int, now: int) -> bool:
        """Returns True if a checkpoint is due after one of the steps from `before` + 1 to `now`."""
        return self.steps is not None and now // self.steps > before // self.steps

    def after_epoch(self, epoch: int) -> bool:
        """Returns True if a checkpoint is due after this epoch."""
        return self._unit == "epochs" and epoch % self._every == 0

    def is_due(self) -> bool:
        """Returns True if a checkpoint is due by the clock."""
        return self._unit == "seconds" and self._clock() - self._saved >= self._every

    def begun(self) -> None:
        """Records that a checkpoint is begun, so that the next is due later."""
        self._saved = self._clock()

    def written(self, seconds: float) -> None:
        """Records how many seconds the last checkpoint took to write."""
        self._write = seconds

    def is_over(self) -> bool:
        """Returns True if the run must end now, so that a checkpoint can be written before the time
        limit. It is called between steps."""
        now = self._clock()
        self._longest, self._asked = max(self._longest, now - self._asked), now
        return now + 2 * self._longest + 2 * self._write + 1 > self._end
