"""PyTorch's schedulers of the rate, for loops of one's own: `step()` sets the rates of all groups.

A scheduler is a function of the number of its steps, times the rates that groups had at first. A
Trainer takes such functions as its schedule, and no scheduler.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.schedule import Schedule, step_decay


class LambdaLR:
    """The rate of each group is its first one times lr_lambda(steps): one function, or one each."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Schedule | Sequence[Schedule]) -> None:
        groups = optimizer.param_groups
        self.optimizer, self.base_lrs = optimizer, [group["lr"] for group in groups]
        given = [lr_lambda] * len(groups) if callable(lr_lambda) else list(lr_lambda)
        if len(given) != len(groups):
            raise ValueError(f"LambdaLR: {len(given)} functions for {len(groups)} groups")
        self.lr_lambdas, self.last_epoch = given, -1
        self.step()

    def step(self) -> None:
        """Count a step, and set the rates."""
        self.last_epoch += 1
        for group, base, factor in zip(
            self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=False
        ):
            group["lr"] = base * factor(self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """The rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the first rates."""
        return {"last_epoch": self.last_epoch, "base_lrs": self.base_lrs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the rates are those that the optimizer has."""
        self.last_epoch, self.base_lrs = state["last_epoch"], list(state["base_lrs"])


class StepLR(LambdaLR):
    """The rate times `gamma` after each `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer, step_decay(step_size, gamma))


class MultiStepLR(LambdaLR):
    """The rate times `gamma` at each of the milestones."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        at = sorted(milestones)
        super().__init__(optimizer, lambda t: gamma ** bisect_right(at, t))


class ExponentialLR(LambdaLR):
    """The rate times `gamma` after each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        super().__init__(optimizer, lambda t: gamma**t)


class LinearLR(LambdaLR):
    """A factor of the rate that goes from one to another in `total_iters` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        slope = (end_factor - start_factor) / total_iters
        super().__init__(optimizer, lambda t: start_factor + slope * min(t, total_iters))


class CosineAnnealingLR(LambdaLR):
    """Half a cosine from the rate down to `eta_min` in `T_max` steps, and up again."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        def falling(floor: float) -> Schedule:
            return lambda t: floor + (1 - floor) * (1 + math.cos(math.pi * t / T_max)) / 2

        rates = [group["lr"] for group in optimizer.param_groups]
        super().__init__(optimizer, [falling(eta_min / lr if lr else 0.0) for lr in rates])


_INSTEAD: dict[str, str] = {
    "ReduceLROnPlateau": "group['lr'] *= 0.1 where the loss has not fallen",
    "OneCycleLR": "LambdaLR(optimizer, nnmpi.optim.warm_up(steps, nnmpi.optim.cosine(total)))",
    "CosineAnnealingWarmRestarts": "LambdaLR(optimizer, lambda t: f(t % T_0)) with f = "
    "nnmpi.optim.cosine(T_0)",
    "SequentialLR": "LambdaLR(optimizer, lambda t: f(t) if t < milestone else g(t - milestone))",
}
"""What to write for other schedulers."""


def __getattr__(name: str) -> NoReturn:
    other = _INSTEAD.get(name, "LambdaLR(optimizer, f) with f(steps), the factor of the rate")
    raise AttributeError(f"nnmpi.optim.lr_scheduler has no {name}: write {other}")
