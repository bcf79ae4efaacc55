"""Learning-rate schedules: functions from the number of completed steps to a factor of the rate."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnmpi.options.value_forms import Rate

LRSchedule = Callable[[int], float]


def constant() -> LRSchedule:
    """Makes a schedule with a constant rate."""
    return lambda t: 1.0


def step_decay(every: int, factor: float = 0.1) -> LRSchedule:
    """A schedule that multiplies the rate by `factor` every `every` steps."""
    if every < 1 or not 0 < factor < math.inf:
        raise ValueError(
            f"step_decay: every={every} must be 1 or more, factor={factor} finite and above 0"
        )

    def power(t: int) -> float:
        try:
            return factor ** (t // every)
        except OverflowError:
            return math.inf

    return power


def cosine(total: int, floor: float = 0.0) -> LRSchedule:
    """Makes a schedule: half a cosine from 1 down to `floor` over `total` steps, then `floor`."""
    if total < 1:
        raise ValueError(f"cosine: total={total} steps must be 1 or more")
    return lambda t: floor + (1 - floor) * (1 + math.cos(math.pi * min(t / total, 1.0))) / 2


def warm_up(steps: int, then: LRSchedule | None = None) -> LRSchedule:
    """A schedule that rises from 1/steps over `steps` steps, then follows `then`."""
    if steps < 0:
        raise ValueError(f"warm_up: steps={steps} must not be negative")
    rest = then or constant()
    return lambda t: (t + 1) / steps if t < steps else rest(t - steps)


def parse(spec: str, total: int) -> LRSchedule:
    """The schedule of `--lr-schedule SPEC` (`options.value_forms`); cosine ends at `total`."""
    from nnmpi.options import value_forms  # only options give schedules as text

    rate = value_forms.rate(spec)
    then = BY_NAME[rate.name](rate, max(total - rate.warmup, 1))
    return warm_up(rate.warmup, then) if rate.warmup else then


BY_NAME: "Mapping[str, Callable[[Rate, int], LRSchedule]]" = {
    "constant": lambda rate, total: constant(),
    "cosine": lambda rate, total: cosine(total),
    "step": lambda rate, total: step_decay(rate.every, rate.factor),
}
