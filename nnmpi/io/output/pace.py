"""Measures the speed of a training run, and collects the losses and norms that events report."""

import math
import time
from typing import NamedTuple

import numpy as np

from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays, is_index
from nnmpi.io.output.messages import Event
from nnmpi.metrics import ACCURACY, Sums, mean
from nnmpi.nn import CrossEntropyLoss
from nnmpi.nn.losses import ClassLoss
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.step.objective import Criterion


class Window(NamedTuple):
    """Sums over the steps since the last "step" event, which reports their means.

    since, until     the number of steps of the run at the start and at the end of the window
    loss, divisor    the sum of the losses, and the number by which it is divided for the mean
    norm, norms      the sum of the gradient norms of these steps, and the number of known norms
    before           (seconds, samples, tokens) of the run so far at the start of the window
    """

    since: int = 0
    until: int = 0
    loss: float = 0.0
    divisor: float = 0.0
    norm: float = 0.0
    norms: int = 0
    before: tuple[float, int, float] = (0.0, 0, 0.0)

    def plus(self, result: StepResult, norm: float | None) -> "Window":
        """Returns the window with one more step, of which `norm` is known or None."""
        return Window(
            self.since,
            result.state.step,
            self.loss + result.loss,
            self.divisor + result.divisor,
            self.norm + (norm or 0.0),
            self.norms + (norm is not None),
            self.before,
        )

    def is_over(self, every: int) -> bool:
        """True if a "step" event is due: after the first step, and every `every` steps."""
        if not every or self.until == self.since:
            return False
        return not self.since or self.until // every != self.since // every


class PaceCounts(NamedTuple):
    """The times and sums of a run so far, which a checkpoint saves.

    seconds, samples, tokens   sums over the steps from which samples per second are computed:
                               all but the first one of a process
    before_epoch               the values of these three sums at the start of the epoch
    norm, norms                the sum of gradient norms in the epoch, and their number
    elapsed                    seconds since the start of the run
    window                     sums over the steps since the last "step" event
    """

    seconds: float = 0.0
    samples: int = 0
    tokens: float = 0.0
    before_epoch: tuple[float, int, float] = (0.0, 0, 0.0)
    norm: float = 0.0
    norms: int = 0
    elapsed: float = 0.0
    window: Window = Window()

    def at(self, norms: tuple[float, int]) -> "PaceCounts":
        """Returns the counts for a run that goes back to an earlier step, with the sum of gradient
        norms in the epoch until then, and their number; times are kept."""
        return self._replace(norm=norms[0], norms=norms[1], window=Window())


NO_TIME = PaceCounts()


class Pace:
    """Measures the speed of a run since this object was created, and of an epoch since `start`,
    without start-up, the first step, evaluations, and user code between steps.

    counts_tokens: True if the loss is divided by the number of tokens; then tokens are counted too
    so_far: the counts of the run before it was resumed
    """

    def __init__(self, counts_tokens: bool = False, so_far: PaceCounts = NO_TIME) -> None:
        self._counts_tokens, self._so_far = counts_tokens, so_far
        self._since = time.perf_counter()
        self._began = self._since - so_far.elapsed
        self._is_warm = False

    @property
    def counts(self) -> PaceCounts:
        """The counts with which a resumed run continues."""
        return self._so_far._replace(elapsed=time.perf_counter() - self._began)

    def again(self, before: PaceCounts) -> "Pace":
        """Returns a Pace that goes on measuring, with the sums and times in `before`."""
        return Pace(self._counts_tokens, before)

    def start(self) -> None:
        """Starts the measurement of an epoch, and the timer of its first step."""
        self._so_far = self._so_far._replace(before_epoch=self._so_far[:3], norm=0.0, norms=0)
        self.resume()

    def resume(self) -> None:
        """Restarts the timer, after what is not training, such as an evaluation."""
        self._since = time.perf_counter()

    def lap(self, result: StepResult, every: int) -> None:
        """Adds a step that has just ended to all sums and times. `every` is the number of steps
        from one "step" event to the next: if one was due before this step, the sums for the next
        are reset first."""
        now = time.perf_counter()
        seconds, samples, tokens, before_epoch, total, norms, elapsed, window = self._so_far
        if window.is_over(every):
            window = Window(window.until, before=(seconds, samples, tokens))
        if self._is_warm:
            seconds += now - self._since
            samples += result.samples
            tokens += result.divisor
        norm = result.gradient_norm if result.updated else None
        if norm is not None:
            total, norms = total + norm, norms + 1
        self._so_far = PaceCounts(
            *(seconds, samples, tokens, before_epoch, total, norms, elapsed),
            window.plus(result, norm),
        )
        self._is_warm, self._since = True, now

    @property
    def window(self) -> Window:
        """Losses and gradient norms since the last "step" event."""
        return self._so_far.window

    def go_back(self, norms: tuple[float, int]) -> None:
        """Resets the sums for the next "step" event, that of norms to `norms` (`PaceCounts.at`)."""
        self._so_far = self._so_far.at(norms)

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return round(time.perf_counter() - self._began, 4)

    @property
    def rates(self) -> Event:
        """The speed of the run so far for the log; 0 if no step was measured."""
        return self._rates("", NO_TIME.before_epoch)

    @property
    def epoch_rates(self) -> Event:
        """The speed of the epoch so far for the log."""
        return self._rates("", self._so_far.before_epoch)

    def _rates(self, prefix: str, since: tuple[float, int, float]) -> Event:
        seconds, samples, tokens = since
        counts = {"samples": self._so_far.samples - samples}
        if self._counts_tokens:
            counts["tokens"] = round(self._so_far.tokens - tokens)
        return {
            f"{prefix}{name}_per_second": round(mean(count, self._so_far.seconds - seconds), 1)
            for name, count in counts.items()
        }

    def of_window(self) -> tuple[Event, Event]:
        """Returns fields for a "step" event: the mean loss and gradient norm (before clipping)
        since the last one; and the samples or tokens per second, none if no step was measured."""
        window = self._so_far.window
        norm = {"gradient_norm": window.norm / window.norms} if window.norms else {}
        rates = self._rates("", window.before).items()
        return {"loss": mean(window.loss, window.divisor), **norm}, {k: v for k, v in rates if v}

    def of_epoch(self) -> Event:
        """Returns an "epoch" event's seconds, speed, and mean norm before clipping."""
        norm, norms = self._so_far.norm, self._so_far.norms
        known = {"mean_gradient_norm": norm / norms} if norms else {}
        return {
            "seconds": self.seconds,
            **known,
            **self._rates("epoch_", self._so_far.before_epoch),
        }


# ---- losses and metrics


def tested(dataset: Dataset, loss: Criterion, test: Sums) -> Event:
    """Returns an evaluation's results for the log, other metrics under "metrics"."""
    means = {name: np.asarray(value).tolist() for name, value in test.means.items()}
    accuracy = {ACCURACY: means.pop(ACCURACY)} if isinstance(means.get(ACCURACY), float) else {}
    return {
        "test_loss": test.mean_loss,
        **accuracy,
        **_of_text(dataset, loss, test.mean_loss),
        **({"metrics": means} if means else {}),
    }


def _of_text(dataset: Dataset, loss: Criterion, nats: float) -> Event:
    """Perplexity, and bits per character or byte, from a mean loss per token in nats.

    perplexity = e^nats      bits = nats / ln 2 * tokens / characters of the held-out text
    """
    is_likelihood = (
        isinstance(loss, CrossEntropyLoss) and loss.weight is None and not loss.label_smoothing
    )
    if dataset.language is None or not is_likelihood:
        return {}
    bits = nats / math.log(2) * dataset.language.tokens_a_unit
    perplexity = math.exp(nats) if nats < 700 else math.inf
    return {"perplexity": perplexity, f"bits_per_{dataset.language.unit}": bits}


def counts_tokens(dataset: Dataset, loss: Criterion) -> bool:
    """True if the loss is divided by tokens: y has a label for each position."""
    y = dataset.train.y
    is_counted = isinstance(loss, ClassLoss) and loss.weight is None
    return is_counted and y.ndim == 2 and any(map(is_index, arrays(dataset.train.x)))
