"""PyTorch's cyclic schedulers: learning rates that rise, fall and restart."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nnmpi.addons.torchlike.optim.scheduler import LRScheduler, for_each
from nnmpi.optim.optimizer import Optimizer


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the first rate down to `eta_min`, again and again: first in T_0 steps,
    then in T_mult times as many as before. `step(epoch + i / batches)` sets the rates within an
    epoch."""

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ValueError(
                f"CosineAnnealingWarmRestarts: T_0={T_0} and T_mult={T_mult} must be at least 1"
            )
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self._time: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: float | None = None) -> None:
        """Counts a step, or goes to the given number of steps, which may be a fraction."""
        self._time = self._time + 1 if epoch is None else epoch
        super().step(math.floor(self._time))

    def get_lr(self) -> list[float]:
        since, length = self._time, self.T_0
        if self.T_mult == 1:
            since %= length
        while since >= length:
            since, length = since - length, length * self.T_mult
        share = (1 + math.cos(math.pi * since / length)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps, with its fraction, and the first rates."""
        return {**super().state_dict(), "time": self._time}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._time = state["time"]


class CyclicLR(LRScheduler):
    """The rate rises from base_lr to max_lr in `step_size_up` steps, falls again in
    `step_size_down`, and repeats (Smith, 2017).

    Meanwhile the momentum, or beta1, falls from max_momentum to base_momentum and rises again.

    mode      "triangular"; "triangular2", whose peaks are halved after each cycle; "exp_range",
              whose peaks are multiplied by gamma ** step
    scale_fn  replaces `mode`: a function of the number of the cycle, or of the step if
              scale_mode="iterations", that returns the factor of the peak
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        factors: dict[str, Callable[[float], float]] = {
            "triangular": lambda cycle: 1.0,
            "triangular2": lambda cycle: 0.5 ** (cycle - 1),
            "exp_range": lambda step: gamma**step,
        }
        if scale_fn is None and mode not in factors:
            raise ValueError(f"CyclicLR: mode={mode!r} must be one of {', '.join(factors)}")
        self._factor = scale_fn or factors[mode]
        self._by_step = scale_mode == "iterations" if scale_fn else mode == "exp_range"
        self._up = float(step_size_up)
        self._length = self._up + (step_size_up if step_size_down is None else step_size_down)
        groups = optimizer.param_groups
        self._rates, self._momenta = (
            [*zip(*(for_each("CyclicLR", *each, groups) for each in pair), strict=True)]
            for pair in (
                (("base_lr", base_lr), ("max_lr", max_lr)),
                (("max_momentum", max_momentum), ("base_momentum", base_momentum)),
            )
        )
        self._cycles = cycle_momentum
        if last_epoch == -1:
            for group, (low, _) in zip(groups, self._rates, strict=True):
                group["initial_lr"] = low
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if self._cycles:
            momenta = [start + (end - start) * self._share() for start, end in self._momenta]
            set_momenta(self, momenta)

    def get_lr(self) -> list[float]:
        return [low + (high - low) * self._share() for low, high in self._rates]

    def _share(self) -> float:
        """Returns where the rate is between base_lr (0) and max_lr (1)."""
        cycle, since = divmod(self.last_epoch, self._length)
        rest = self._length - self._up
        height = since / self._up if since <= self._up else (self._length - since) / rest
        return height * self._factor(self.last_epoch if self._by_step else 1 + cycle)


class _Phase(NamedTuple):
    """A phase of OneCycleLR: its last step; and the learning rates, and the momenta, of the groups
    at its beginning and at its end."""

    end: float
    first_rates: list[float]
    last_rates: list[float]
    first_momenta: list[float]
    last_momenta: list[float]


class OneCycleLR(LRScheduler):
    """The rate rises from max_lr / div_factor to max_lr in a share `pct_start` of the steps, and
    then falls to the first rate / final_div_factor (Smith and Topin, 2018).

    Meanwhile the momentum, or beta1, falls from max_momentum to base_momentum and rises again. With
    `three_phase` the rate falls back to the first rate in as many steps as it has risen, and in the
    remaining steps to its end.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        total = total_steps if total_steps is not None else (epochs or 0) * (steps_per_epoch or 0)
        if total < 1 or not 0 <= pct_start <= 1 or anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"OneCycleLR: {total} steps, pct_start={pct_start}, {anneal_strategy!r}: give "
                "total_steps, or epochs and steps_per_epoch, a share from 0 to 1, and 'cos' or "
                "'linear'"
            )
        groups = optimizer.param_groups
        self.total_steps, self._is_cosine = total, anneal_strategy == "cos"
        self._cycles = cycle_momentum
        top, low, high = (
            for_each("OneCycleLR", name, value, groups)
            for name, value in (
                ("max_lr", max_lr),
                ("base_momentum", base_momentum),
                ("max_momentum", max_momentum),
            )
        )
        first = [rate / div_factor for rate in top]
        end = [rate / final_div_factor for rate in first]
        rates, momenta = (first, top, end), (low, high)
        self._phases = _one_cycle(total, pct_start, rates, momenta, three_phase)
        if last_epoch == -1:
            for group, rate in zip(groups, first, strict=True):
                group["initial_lr"] = rate
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if self._cycles:
            phase, share = self._now()
            set_momenta(self, _between(phase.first_momenta, phase.last_momenta, share))

    def get_lr(self) -> list[float]:
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"OneCycleLR: step {self.last_epoch} of {self.total_steps}: give a larger "
                "total_steps"
            )
        phase, share = self._now()
        return _between(phase.first_rates, phase.last_rates, share)

    def _now(self) -> tuple[_Phase, float]:
        """Returns the current phase, and how much of it is over, from 0 to 1."""
        begin, phases = 0.0, [*map(_Phase._make, self._phases)]  # older pickles have tuples
        for phase in phases[:-1]:
            if self.last_epoch <= phase.end:
                break
            begin = phase.end
        else:
            phase = phases[-1]
        share = (self.last_epoch - begin) / (phase.end - begin)
        return phase, (1 - math.cos(math.pi * share)) / 2 if self._is_cosine else share


def _one_cycle(
    total: int,
    pct_start: float,
    rates: tuple[list[float], list[float], list[float]],
    momenta: tuple[list[float], list[float]],
    three_phase: bool,
) -> list[_Phase]:
    """Returns the phases of one cycle of `total` steps; `rates` are the first, the highest and the
    last ones, `momenta` the lowest and the highest ones."""
    (first, top, end), (low, high) = rates, momenta
    rise = _Phase(float(pct_start * total) - 1, first, top, high, low)
    if not three_phase:
        return [rise, _Phase(total - 1.0, top, end, low, high)]
    back = _Phase(2 * pct_start * total - 2, top, first, low, high)
    return [rise, back, _Phase(total - 1.0, first, end, high, high)]


def _between(first: list[float], last: list[float], share: float) -> list[float]:
    return [a + (b - a) * share for a, b in zip(first, last, strict=True)]


def set_momenta(scheduler: LRScheduler, momenta: Sequence[float]) -> None:
    """Sets the momentum of each group of the scheduler's optimizer, beta1 for Adam and the like,
    and both for Muon, to the numbers `momenta`; raises ValueError if the optimizer has neither."""
    optimizer = scheduler.optimizer
    for group, momentum in zip(optimizer.param_groups, momenta, strict=True):
        if "betas" in group:
            group["betas"] = (momentum, *group["betas"][1:])
        if "momentum" in group:
            group["momentum"] = momentum
            _add_missing_state(optimizer, group)
        if not group.keys() & {"betas", "momentum"}:
            raise ValueError(
                f"{type(scheduler).__name__}: {type(optimizer).__name__} has no momentum and no "
                "betas: give cycle_momentum=False"
            )


def _add_missing_state(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Adds state arrays that a group's options need since they were changed."""
    for name in optimizer._state_names(group):
        if name not in optimizer.state_names:
            optimizer.add_state(name)
