"""SaveTimes: when a run writes checkpoints.

    --save-every N          after steps N, 2 N, ...: all ranks know without a message
                 Ns         by the clock of the first rank, whose request rides on the gradients
                 N epochs   after the evaluation, as with --keep-best
    SIGUSR1, --time-limit   a rank requests the end, and all write a checkpoint of the same step

Where ranks make their steps at different times, each of these waits for the end of an epoch.
"""

import math
import time
from collections.abc import Callable

from nnmpi.options import terms
from nnmpi.options.config import Config


class SaveTimes:
    """When checkpoints are due, by steps, epochs or a clock; and when the time is over.

    began     when the run did, by the clock
    longest   the seconds between two questions whether the time is over, at most so far
    """

    def __init__(
        self, config: Config, began: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        spec = config.save_every
        self._every, self._unit = terms.interval(spec) if spec else (math.inf, "")
        limit = terms.duration(config.time_limit) if config.time_limit else math.inf
        self._clock = clock
        self._saved = self._asked = clock()
        self._end, self._longest, self._write = began + limit, 0.0, 0.0

    def begin(self) -> None:
        """Steps begin, or go on: until now nobody could ask."""
        self._asked = self._clock()

    def after_steps(self, before: int, now: int) -> bool:
        """Whether a checkpoint is due after one of the steps since that of the last question."""
        return self._unit == "steps" and now // self._every > before // self._every

    def after_epoch(self, epoch: int) -> bool:
        """Whether one is due after this epoch."""
        return self._unit == "epochs" and epoch % self._every == 0

    def is_due(self) -> bool:
        """Whether one is due by the clock."""
        return self._unit == "seconds" and self._clock() - self._saved >= self._every

    def begun(self) -> None:
        """A checkpoint is begun."""
        self._saved = self._clock()

    def written(self, seconds: float) -> None:
        """A checkpoint took so long."""
        self._write = seconds

    def is_over(self) -> bool:
        """Whether the run has to end now, to write a checkpoint before its time is over.

        By the next question twice the longest time between two may have gone by.
        """
        now = self._clock()
        self._longest, self._asked = max(self._longest, now - self._asked), now
        return now + 2 * self._longest + 2 * self._write + 1 > self._end
