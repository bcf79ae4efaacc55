"""PyTorch's learning-rate schedulers, for training loops of your own: `step()` sets the rates.

All are a LambdaLR, whose functions get the number of steps. A Trainer takes no scheduler, but the
option `lr_schedule`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.schedule import LRSchedule, step_decay


class LambdaLR:
    """Sets the rate of each group to its first rate times lr_lambda(steps).

    `lr_lambda` is one function for all groups, or a list with one function for each.
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: LRSchedule | Sequence[LRSchedule]) -> None:
        groups = optimizer.param_groups
        self.lr_lambdas = [lr_lambda] * len(groups) if callable(lr_lambda) else [*lr_lambda]
        if len(self.lr_lambdas) != len(groups):
            raise ValueError(
                f"LambdaLR: {len(self.lr_lambdas)} functions for {len(groups)} groups: give one, "
                "or one for each"
            )
        self.optimizer, self.base_lrs = optimizer, [group["lr"] for group in groups]
        self.last_epoch = -1
        self.step()

    def step(self) -> None:
        """Counts a step, and sets the learning rates of all groups."""
        self.last_epoch += 1
        rows = zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=False)
        for group, base, factor in rows:
            group["lr"] = base * factor(self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """Returns the current rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps and the first rates."""
        return {"last_epoch": self.last_epoch, "base_lrs": self.base_lrs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the number of steps and the first rates; the optimizer keeps its current rates
        until `step`."""
        self.last_epoch, self.base_lrs = state["last_epoch"], [*state["base_lrs"]]


def _of(factor: Callable[..., LRSchedule]) -> Callable[..., LambdaLR]:
    """Makes a scheduler class of a function from the first rate and options to the factor of the
    rate."""

    def scheduler(optimizer: Optimizer, *args: Any, **options: Any) -> LambdaLR:
        rates = [group["lr"] for group in optimizer.param_groups]
        return LambdaLR(optimizer, [factor(lr, *args, **options) for lr in rates])

    return scheduler


def _linear(
    lr: float, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
) -> LRSchedule:
    slope = (end_factor - start_factor) / total_iters
    return lambda t: start_factor + slope * min(t, total_iters)


def _cosine(lr: float, T_max: int, eta_min: float = 0.0) -> LRSchedule:
    floor = eta_min / lr if lr else 0.0
    return lambda t: floor + (1 - floor) * (1 + math.cos(math.pi * t / T_max)) / 2


def _milestones(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> LRSchedule:
    steps = sorted(milestones)
    return lambda t: gamma ** bisect_right(steps, t)


StepLR = _of(lambda lr, step_size, gamma=0.1: step_decay(step_size, gamma))
MultiStepLR = _of(_milestones)
ExponentialLR = _of(lambda lr, gamma: lambda t: gamma**t)
LinearLR = _of(_linear)
CosineAnnealingLR = _of(_cosine)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"nnmpi.optim.lr_scheduler has no {name}: use LambdaLR(optimizer, f), where f(steps) is "
        "the factor of the rate, such as nnmpi.optim.cosine(total); or set group['lr'] *= 0.1 "
        "when the loss stops falling"
    )
