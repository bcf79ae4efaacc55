"""Measures times, rates, gradient norms, and losses and metrics of a run, for its events."""

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
    """Sums over the steps since the last "step" event.

    since, until     the number of the run's steps at its begin (0 before the first event) and end
    loss, divisor    the sum of the losses, and the divisor of their mean
    norm, norms      the sum of gradient norms, and their number
    before           the seconds, samples and tokens that counted for rates at its begin
    """

    since: int = 0
    until: int = 0
    loss: float = 0.0
    divisor: float = 0.0
    norm: float = 0.0
    norms: int = 0
    before: tuple[float, int, float] = (0.0, 0, 0.0)

    def plus(self, result: StepResult, norm: float | None) -> "Window":
        """Returns the window with one more step, and the norm of its gradient if known."""
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
        """Returns True if an event is due: after the first step of a run, and at multiples of
        `every` steps.
        """
        if not every or self.until == self.since:
            return False
        return not self.since or self.until // every != self.since // every


class PaceCounts(NamedTuple):
    """The times of a run so far, with which a resumed run continues.

    seconds, samples, tokens   sums over the steps that count for rates
    before_epoch               the same three at the begin of the epoch
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
        """Returns the counts after the run goes back to an earlier step, with its epoch's norms
        until then.
        """
        return self._replace(norm=norms[0], norms=norms[1], window=Window())


NO_TIME = PaceCounts()


class Pace:
    """Measures times and rates of a run since the Pace was created, and of an epoch since `start`.

    Rates leave out start-up, the first step, evaluations, and user code between steps.

    counts_tokens: True if the loss is divided by tokens, which are then counted beside samples
    so_far: the counts of the run before it was resumed
    """

    def __init__(self, counts_tokens: bool = False, so_far: PaceCounts = NO_TIME) -> None:
        self._counts_tokens, self._so_far = counts_tokens, so_far
        self._since = time.perf_counter()
        self._began = self._since - so_far.elapsed
        self._is_warm = False

    @property
    def counts(self) -> PaceCounts:
        """The times so far, with which a run that is resumed at this point continues."""
        return self._so_far._replace(elapsed=time.perf_counter() - self._began)

    def again(self, before: PaceCounts) -> "Pace":
        """Returns another Pace of the same run, which continues from the counts `before`."""
        return Pace(self._counts_tokens, before)

    def start(self) -> None:
        """Starts an epoch, and the timer of its first step."""
        self._so_far = self._so_far._replace(before_epoch=self._so_far[:3], norm=0.0, norms=0)
        self.resume()

    def resume(self) -> None:
        """Restarts the timer of a step, after something that does not count for rates."""
        self._since = time.perf_counter()

    def lap(self, result: StepResult, every: int) -> None:
        """Records the end of a step; starts a new window if the last one has `every` steps."""
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
        """Sums over the steps since the last "step" event."""
        return self._so_far.window

    def go_back(self, norms: tuple[float, int]) -> None:
        """Resets the window as the run goes back to an earlier step; `norms` are its epoch's norms
        until then.
        """
        self._so_far = self._so_far.at(norms)

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return round(time.perf_counter() - self._began, 4)

    @property
    def rates(self) -> Event:
        """Samples, and tokens if counted, per second of the run so far; 0 if no step was
        measured.
        """
        return self._rates("", NO_TIME.before_epoch)

    @property
    def epoch_rates(self) -> Event:
        """Samples, and tokens if counted, per second of the epoch so far."""
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
        """Returns fields for a "step" event: mean loss and gradient norm before clipping; and,
        apart, rates.

        Rates are missing if no step was measured.
        """
        window = self._so_far.window
        norm = {"gradient_norm": window.norm / window.norms} if window.norms else {}
        rates = self._rates("", window.before).items()
        return {"loss": mean(window.loss, window.divisor), **norm}, {k: v for k, v in rates if v}

    def of_epoch(self) -> Event:
        """Returns fields for an epoch's event: seconds, rates, and the mean gradient norm before
        clipping.
        """
        norm, norms = self._so_far.norm, self._so_far.norms
        known = {"mean_gradient_norm": norm / norms} if norms else {}
        return {
            "seconds": self.seconds,
            **known,
            **self._rates("epoch_", self._so_far.before_epoch),
        }


# ---- losses and metrics


def tested(dataset: Dataset, loss: Criterion, test: Sums) -> Event:
    """Returns loss and metrics of an evaluation as fields of an event.

    The accuracy has a field of its own; other metrics are under the key "metrics".
    """
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
    """Returns True if the loss is divided by the number of tokens: y has a label for each
    position.
    """
    y = dataset.train.y
    is_counted = isinstance(loss, ClassLoss) and loss.weight is None
    return is_counted and y.ndim == 2 and any(map(is_index, arrays(dataset.train.x)))
