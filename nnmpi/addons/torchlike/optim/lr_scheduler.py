"""PyTorch's learning-rate schedulers, for a user's own training loop: `step()` sets the rates.

Most are a LambdaLR, whose functions get the number of steps. Subclasses of LRScheduler define
`get_lr`. A Trainer takes no scheduler, but the option `lr_schedule`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, NoReturn

from nnmpi.addons import finder
from nnmpi.addons.torchlike.optim.cycles import (
    CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts,
)
from nnmpi.addons.torchlike.optim.cycles import CyclicLR as CyclicLR
from nnmpi.addons.torchlike.optim.cycles import OneCycleLR as OneCycleLR
from nnmpi.addons.torchlike.optim.scheduler import LRScheduler, for_each
from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.schedule import LRSchedule, step_decay


class LambdaLR(LRScheduler):
    """Sets the rate of each group to its first rate times lr_lambda(steps), of one function for all
    groups, or one for each."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: LRSchedule | Sequence[LRSchedule],
        last_epoch: int = -1,
    ) -> None:
        groups = optimizer.param_groups
        self.lr_lambdas = [lr_lambda] * len(groups) if callable(lr_lambda) else [*lr_lambda]
        if len(self.lr_lambdas) != len(groups):
            raise ValueError(
                f"{type(self).__name__}: {len(self.lr_lambdas)} functions for {len(groups)} "
                "groups: give one, or one for each"
            )
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        rows = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * factor(self.last_epoch) for base, factor in rows]


class MultiplicativeLR(LambdaLR):
    """Multiplies the current rate of each group by lr_lambda(steps), one function or one for each
    group, at each step; the rates before the first step stay."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: LRSchedule | Sequence[LRSchedule],
        last_epoch: int = -1,
    ) -> None:
        self._first = last_epoch + 1
        super().__init__(optimizer, lr_lambda, last_epoch)

    def get_lr(self) -> list[float]:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if self.last_epoch <= self._first:
            return rates
        rows = zip(rates, self.lr_lambdas, strict=True)
        return [rate * factor(self.last_epoch) for rate, factor in rows]


class ChainableLR(LambdaLR):
    """A LambdaLR that changes the current rates step by step, as in PyTorch, so that changes by
    another scheduler or by the program stay in effect.

    For instance, if the program halves a rate, all later rates are half of what they would have
    been; with a `floor`, the lowest rate of the schedule, their distance from the floor is halved.
    A change at the floor, where no ratio is known, is added to the next rate.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Sequence[LRSchedule],
        last_epoch: int,
        floor: float = 0.0,
    ) -> None:
        self._floor = floor
        super().__init__(optimizer, lr_lambda, last_epoch)

    def step(self, epoch: int | None = None) -> None:
        """Counts a step, or sets the count to `epoch`, and changes the rates of all groups."""
        floor, groups = self._floor, self.optimizer.param_groups
        alone = self.base_lrs if self.last_epoch < 0 else self.get_lr()
        rates = [group["lr"] for group in groups]
        super().step(epoch)
        for group, rate, expected in zip(groups, rates, alone, strict=False):
            if epoch is not None or rate == expected:
                continue
            if abs(expected - floor) <= 1e-9 * floor:
                group["lr"] += rate - expected
            else:
                group["lr"] = floor + (group["lr"] - floor) * (rate - floor) / (expected - floor)


def _of(factor: Callable[..., LRSchedule]) -> Callable[..., LambdaLR]:
    """Makes a scheduler class from a function that returns the factor of the rate."""

    def scheduler(
        optimizer: Optimizer, *args: Any, last_epoch: int = -1, **options: Any
    ) -> LambdaLR:
        rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        factors = [factor(lr, *args, **options) for lr in rates]
        given = signature(factor).bind(0.0, *args, **options).arguments
        return ChainableLR(optimizer, factors, last_epoch, given.get("eta_min", 0.0))

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


def _constant(lr: float, factor: float = 1 / 3, total_iters: int = 5) -> LRSchedule:
    return lambda t: factor if t < total_iters else 1.0


def _polynomial(lr: float, total_iters: int = 5, power: float = 1.0) -> LRSchedule:
    return lambda t: (1 - min(t, total_iters) / total_iters) ** power


StepLR = _of(lambda lr, step_size, gamma=0.1: step_decay(step_size, gamma))
MultiStepLR = _of(_milestones)
ExponentialLR = _of(lambda lr, gamma: lambda t: gamma**t)
LinearLR = _of(_linear)
ConstantLR = _of(_constant)
PolynomialLR = _of(_polynomial)
CosineAnnealingLR = _of(_cosine)


class _Several(LRScheduler):
    """The base of schedulers that call `step` of others, all of one optimizer."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], last_epoch: int = -1
    ) -> None:
        name = type(self).__name__
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise ValueError(f"{name}: give schedulers of this optimizer")
        if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
            raise ValueError(f"{name}: call step(measure) of a ReduceLROnPlateau separately")
        self._schedulers = [*schedulers]
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps, and the states of the schedulers."""
        states = [scheduler.state_dict() for scheduler in self._schedulers]
        return {**super().state_dict(), "schedulers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for scheduler, its_state in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(its_state)


class ChainedScheduler(_Several):
    """Calls `step` of all schedulers at each step, one after the other."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler: give at least one scheduler")
        super().__init__(optimizer or schedulers[0].optimizer, schedulers)

    def step(self, epoch: int | None = None) -> None:
        """Counts a step of all schedulers."""
        self.last_epoch += 1
        if self.last_epoch:  # step 0 was made when the schedulers were
            for scheduler in self._schedulers:
                scheduler.step()


class SequentialLR(_Several):
    """Uses several schedulers in turn: the next one from each milestone (in steps) on."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(milestones)} milestones for {len(schedulers)} schedulers: "
                "give one between each two"
            )
        self._milestones = [*milestones]
        for group in optimizer.param_groups:  # later schedulers have set their own first rates
            group["lr"] = group.get("initial_lr", group["lr"])
        super().__init__(optimizer, schedulers, last_epoch)

    def step(self, epoch: int | None = None) -> None:
        """Counts a step, and sets the rates of all groups."""
        self.last_epoch += 1
        current = bisect_right(self._milestones, self.last_epoch)
        starts = [0, *self._milestones]
        is_first = self.last_epoch == starts[current]
        self._schedulers[current].step(0 if is_first else None)


class ReduceLROnPlateau:
    """Multiplies the rates by `factor` if a measure, such as the loss, has not improved for more
    than `patience` steps. Then it waits for `cooldown` steps.

    With mode "min" the measure improves if it is below `best` by a share `threshold` of `best` or,
    with threshold_mode "abs", by `threshold`; with mode "max" if it is above.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs") or factor >= 1:
            raise ValueError(
                f"ReduceLROnPlateau: mode={mode!r}, threshold_mode={threshold_mode!r}, "
                f"factor={factor}: give 'min' or 'max', 'rel' or 'abs', and a factor below 1"
            )
        self.optimizer, self.mode, self.threshold_mode = optimizer, mode, threshold_mode
        self.factor, self.patience, self.threshold = factor, patience, threshold
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = for_each("ReduceLROnPlateau", "min_lr", min_lr, optimizer.param_groups)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def step(self, metrics: Any) -> None:
        """Takes the measure of this step, and reduces the rates if it stays without progress."""
        value, self.last_epoch = float(metrics), self.last_epoch + 1
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                rate = max(group["lr"] * self.factor, least)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _is_better(self, value: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "rel":
            return sign * value > sign * self.best * (1 + sign * self.threshold)
        return sign * value > sign * self.best + self.threshold

    def get_last_lr(self) -> list[float]:
        """Returns the current rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Returns the best measure, and the counters."""
        return {name: getattr(self, name) for name in PLATEAU_STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the best measure and the counters; the optimizer keeps its current rates."""
        for name in PLATEAU_STATE:
            setattr(self, name, state[name])


PLATEAU_STATE = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")

_LRScheduler = LRScheduler  # PyTorch's older name, of which programs make subclasses


def __getattr__(name: str) -> NoReturn:
    raise finder.missing(
        f"nnmpi.optim.lr_scheduler has no {name}: use LambdaLR(optimizer, f), where f(steps) is "
        "the factor of the rate, such as nnmpi.optim.cosine(total); or write a subclass of "
        "LRScheduler with get_lr"
    )
