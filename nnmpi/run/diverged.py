"""A loss that is NaN or infinite ends a run."""

import math

from nnmpi.config import Config
from nnmpi.parallel.strategy import AgreedError


class DivergedError(AgreedError):
    """The loss is NaN or infinite."""


def check_finite(what: str, value: float, step: int, lr: float, config: Config) -> None:
    """Raises DivergedError if a loss is NaN or infinite; `lr` is the rate of the last update."""
    if not math.isfinite(value):
        grown = lr > config.lr  # the schedule raised it
        remedy = "another --lr-schedule" if grown else f"--lr {config.lr / 10:g}"
        saved = "; nothing was saved" if config.save else ""
        raise DivergedError(
            f"the {what} became {value} at step {step} with learning rate {lr:g}; "
            f"try {remedy}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
        )
