"""The base of PyTorch's learning-rate schedulers."""

from collections.abc import Mapping, Sequence
from typing import Any

from nnmpi.optim.optimizer import Optimizer


class LRScheduler:
    """The base of schedulers: `step` sets the rate of each group to the result of `get_lr`.

    last_epoch   the number of steps
    base_lrs     the first rate of each group, which stays in the group as `initial_lr`
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch != -1 and "initial_lr" not in group:
                raise ValueError(
                    f"{type(self).__name__}: last_epoch={last_epoch} goes on with rates of which "
                    f"group {i} has no initial_lr: leave it out, and call load_state_dict"
                )
            group.setdefault("initial_lr", group["lr"])
        self.optimizer, self.last_epoch = optimizer, last_epoch
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    def step(self, epoch: int | None = None) -> None:
        """Counts a step, or sets the count to `epoch`, and sets the rates of all groups."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=False):
            group["lr"] = rate

    def get_lr(self) -> list[float]:
        """Returns the rate of each group after `last_epoch` steps; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr")

    def get_last_lr(self) -> list[float]:
        """Returns the current rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps and the first rates."""
        return {"last_epoch": self.last_epoch, "base_lrs": self.base_lrs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the count and the first rates; current rates stay until `step`."""
        self.last_epoch, self.base_lrs = state["last_epoch"], [*state["base_lrs"]]


def for_each(
    owner: str, name: str, value: float | Sequence[float], groups: Sequence[Any]
) -> list[float]:
    """Returns a list with one number for each group, from one number for all groups or a list of
    them; raises ValueError for a list of another length. `owner` and `name` are for the message."""
    values = [*value] if isinstance(value, Sequence) else [value] * len(groups)
    if len(values) != len(groups):
        raise ValueError(
            f"{owner}: {len(values)} values of {name} for {len(groups)} groups: give one number, "
            "or one for each"
        )
    return values
