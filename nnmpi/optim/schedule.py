"""Learning-rate schedules: functions from the number of finished steps to a factor of the rate."""

import math
from collections.abc import Callable

from nnmpi.quoting import quoted

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """A constant rate."""
    return lambda t: 1.0


def step_decay(every: int, factor: float = 0.1) -> Schedule:
    """The rate times `factor` after each `every` steps; inf on overflow."""
    if every < 1 or not 0 < factor < math.inf:
        raise ValueError(
            f"step_decay: every={every} must be 1 or more, factor={factor} a number above 0"
        )

    def power(t: int) -> float:
        try:
            return factor ** (t // every)
        except OverflowError:
            return math.inf

    return power


def cosine(total: int, floor: float = 0.0) -> Schedule:
    """Half a cosine from 1 down to `floor` over `total` steps, then `floor`."""
    if total < 1:
        raise ValueError(f"cosine: total={total} steps must be 1 or more")
    return lambda t: floor + (1 - floor) * (1 + math.cos(math.pi * min(t / total, 1.0))) / 2


def warm_up(steps: int, then: Schedule | None = None) -> Schedule:
    """A linear rise over `steps` steps, starting at 1/steps, and `then` from there on."""
    if steps < 0:
        raise ValueError(f"warm_up: steps={steps} must not be negative")
    after = then or constant()
    return lambda t: (t + 1) / steps if t < steps else after(t - steps)


def parse(spec: str, total: int) -> Schedule:
    """The schedule of `--lr-schedule SPEC`; cosine ends at step `total`.

    SPEC: `constant`, `cosine` or `step:EVERY[:FACTOR]`, each optionally after `warmup:STEPS+`;
    `warmup:STEPS` alone is followed by a constant rate.
    """
    head, plus, tail = spec.partition("+")
    name, _, steps = head.partition(":")
    try:
        if name == "warmup" and int(steps) > 0:
            after = _term(tail if plus else "constant", max(total - int(steps), 1))
            return warm_up(int(steps), after)
        return _term(spec, total)
    except ValueError:
        raise ValueError(
            f"lr-schedule {quoted(spec)} is none of constant, cosine, step:EVERY[:FACTOR], "
            "and warmup:STEPS+ one of these; EVERY and STEPS are at least 1, and FACTOR is above 0"
        ) from None


def _term(spec: str, total: int) -> Schedule:
    """The schedule of one term; raises ValueError for what is none."""
    name, *values = spec.split(":")
    if name == "constant" and not values:
        return constant()
    if name == "cosine" and not values:
        return cosine(max(total, 1))
    if name == "step" and len(values) in (1, 2):
        return step_decay(int(values[0]), *map(float, values[1:]))
    raise ValueError(spec)
