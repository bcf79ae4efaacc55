"""Pace: time, rates and gradients of a run, for its events."""

import time

from nnmpi.metrics import mean
from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.report.messages import Event


class Pace:
    """Time and rates of the run since it was made, and of the epoch since `start`.

    Rates leave out start-up, the first step, evaluations, and what a user does between steps.
    """

    def __init__(self) -> None:
        self._began = self._since = time.perf_counter()
        self._is_warm = False
        self._seconds, self._samples = 0.0, 0  # of the run
        self._before_epoch = 0.0, 0
        self._norm, self._norms = 0.0, 0  # of the epoch: their sum, and how many

    def start(self) -> None:
        """Start an epoch, and the time of its first step."""
        self._before_epoch = self._seconds, self._samples
        self._norm, self._norms = 0.0, 0
        self.resume()

    def resume(self) -> None:
        """Start the time of a step, after something that is none."""
        self._since = time.perf_counter()

    def lap(self, result: StepResult) -> None:
        """Record the end of a step."""
        now = time.perf_counter()
        if self._is_warm:
            self._seconds += now - self._since
            self._samples += result.samples
        self._is_warm, self._since = True, now
        if result.updated and result.gradient_norm is not None:
            self._norm += result.gradient_norm
            self._norms += 1

    @property
    def seconds(self) -> float:
        """Since the start of the run."""
        return round(time.perf_counter() - self._began, 4)

    @property
    def rate(self) -> float:
        """Samples per second of the run so far; 0 if no step was measured."""
        return round(mean(self._samples, self._seconds), 1)

    @property
    def epoch_rate(self) -> float:
        """Samples per second of the epoch so far."""
        seconds, samples = self._before_epoch
        return round(mean(self._samples - samples, self._seconds - seconds), 1)

    def of_epoch(self) -> Event:
        """What the event of an epoch says; the norm is the mean over its steps, before clipping."""
        known = {"mean_gradient_norm": self._norm / self._norms} if self._norms else {}
        return {"seconds": self.seconds, **known, "epoch_samples_per_second": self.epoch_rate}
