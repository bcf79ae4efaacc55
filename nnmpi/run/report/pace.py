"""Pace: time, rate and gradients of a run, for its events."""

import time

from nnmpi.metrics import Mean, Stopwatch
from nnmpi.parallel.step.state import StepResult
from nnmpi.run.report.text import Event


class Pace:
    """Of the run since it was made, and of the epoch since `start`."""

    def __init__(self) -> None:
        self._began, self._clock, self._norms = time.perf_counter(), Stopwatch(), Mean()

    def start(self) -> None:
        """Start an epoch."""
        self._norms = Mean()
        self._clock.start()

    def resume(self) -> None:
        """Go on after callbacks, whose time is not that of steps."""
        self._clock.resume()

    def lap(self, result: StepResult) -> None:
        """Record the end of a step."""
        self._clock.lap(result.samples)
        if result.updated:
            self._norms.add(result.gradient_norm)

    @property
    def seconds(self) -> float:
        """Since the start of the run."""
        return round(time.perf_counter() - self._began, 4)

    @property
    def rate(self) -> float:
        """Samples per second of the run so far."""
        return round(self._clock.run.rate, 1)

    @property
    def epoch_rate(self) -> float:
        """Samples per second of the epoch so far."""
        return round(self._clock.epoch.rate, 1)

    def of_epoch(self) -> Event:
        """What the event of an epoch says; the norm is the mean over its steps, before clipping."""
        norm = self._norms.value
        known = {} if norm is None else {"mean_gradient_norm": norm}
        return {"seconds": self.seconds, **known, "epoch_samples_per_second": self.epoch_rate}
