"""Groups of parameters, each with its own values of an optimizer's options, as in PyTorch.

{"params": [weight, bias], "lr": 0.01, "weight_decay": 0.0}
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from nnmpi.nn.parameter import Parameter

Group: TypeAlias = dict[str, Any]
Parameters: TypeAlias = Iterable[Parameter] | Iterable[Mapping[str, Any]]
"""The parameters of an optimizer, or groups of them."""


def matrices_decay(parameters: Iterable[Parameter]) -> list[Group]:
    """A group of the parameters with two axes or more, and one of the others, which do not decay.

    Layers that are sharded keep the number of axes: the groups are the same on any ranks.
    """
    listed = list(parameters)
    return [
        {"params": [p for p in listed if len(p.shape) > 1]},
        {"params": [p for p in listed if len(p.shape) < 2], "weight_decay": 0.0},
    ]


def all_decay(parameters: Iterable[Parameter]) -> list[Group]:
    """One group."""
    return [{"params": list(parameters)}]


DECAYS: dict[str, Callable[[Iterable[Parameter]], list[Group]]] = {
    "all": all_decay,
    "matrices": matrices_decay,
}
"""Groups by what decays, as --weight-decay-of names them."""


class Option:
    """An option of every group: reading gives the value they share, writing sets it in all."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type) -> Any:
        if optimizer is None:
            return self
        first, *others = (group[self._name] for group in optimizer.param_groups)
        if any(value != first for value in others):
            raise ValueError(
                f"{self._name} differs between the groups of this optimizer: "
                f"read param_groups[i][{self._name!r}]"
            )
        return first

    def __set__(self, optimizer: Any, value: Any) -> None:
        for group in optimizer.param_groups:
            group[self._name] = value


def grouped(given: Parameters, options: Mapping[str, Any]) -> list[Group]:
    """A group for each one given, or one of all parameters; `options` where a group has none."""
    if not isinstance(given, Iterable) or isinstance(given, Parameter | Mapping):
        raise ValueError(
            f"an optimizer takes a list of parameters, not a {type(given).__name__}: give "
            "model.parameters(), [layer.weight], or groups like [{'params': [...], 'lr': 0.01}]"
        )
    entries: list[Any] = list(given)
    if not any(isinstance(entry, Mapping) for entry in entries):
        entries = [{"params": entries}]
    groups = []
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or "params" not in entry:
            raise ValueError(
                f"group {i} of this optimizer is a {type(entry).__name__} without 'params': "
                "give a list of parameters, or of groups like {'params': [...], 'lr': 0.01}"
            )
        for name in entry:
            if name != "params" and name not in options:
                raise ValueError(
                    f"group {i} has an option {name!r}, which this optimizer does not have; "
                    f"its options are {', '.join(options)}"
                )
        members = entry["params"]
        listed = [members] if isinstance(members, Parameter) else list(members)
        groups.append({**options, **entry, "params": listed})
    return groups
