"""Groups of parameters, each with its own values of an optimizer's options, as in PyTorch.

{"params": [weight, bias], "lr": 0.01, "weight_decay": 0.0}
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, TypedDict

from nnmpi.autograd import Tensor
from nnmpi.nn.parameter import Parameter
from nnmpi.options.quoting import nearest

Group: TypeAlias = dict[str, Any]
Parameters: TypeAlias = Iterable[Parameter] | Iterable[Mapping[str, Any]]
"""The parameters of an optimizer, or groups of them."""


def matrices_decay(parameters: Iterable[Parameter]) -> list[Group]:
    """Makes two parameter groups, so that weight decay acts on matrices only: parameters with two
    axes or more; and the others, such as biases and the weights of norms, with weight decay 0.

    Sharded layers keep the number of axes, so the groups are the same on any number of ranks.
    """
    listed = list(parameters)
    return [
        {"params": [p for p in listed if len(p.shape) > 1]},
        {"params": [p for p in listed if len(p.shape) < 2], "weight_decay": 0.0},
    ]


def all_decay(parameters: Iterable[Parameter]) -> list[Group]:
    """Makes one parameter group of all parameters, so that weight decay acts on all of them."""
    return [{"params": list(parameters)}]


DECAYS: dict[str, Callable[[Iterable[Parameter]], list[Group]]] = {
    "all": all_decay,
    "matrices": matrices_decay,
}
"""How parameters are grouped by weight decay, under the names of --weight-decay-of."""


class Option:
    """A descriptor of an option of the groups, such as `lr`: reading it returns the value that all
    groups share, and raises ValueError if they differ; writing sets it in all."""

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


def grouped(
    parameters: Parameters, options: Mapping[str, Any], takes_others: bool = False
) -> list[Group]:
    """Makes the groups of an optimizer, with missing options from `options`. Raises ValueError if
    an entry is not a group, or, unless `takes_others`, has an unknown option."""
    if not isinstance(parameters, Iterable) or isinstance(parameters, Tensor | Mapping):
        raise ValueError(
            f"an optimizer takes a list of parameters, not a {type(parameters).__name__}: give "
            "model.parameters(), [layer.weight], or groups like [{'params': [...], 'lr': 0.01}]"
        )
    entries: list[Any] = list(parameters)
    if not any(isinstance(entry, Mapping) for entry in entries):
        entries = [{"params": entries}]
    groups = []
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or "params" not in entry:
            raise ValueError(
                f"group {i} of this optimizer is a {type(entry).__name__} without 'params': "
                "give a list of parameters, or of groups like {'params': [...], 'lr': 0.01}"
            )
        if not takes_others and not entry.keys() <= {"params", *options}:
            _refuse_options(i, entry, options)
        members = entry["params"]
        listed = [members] if isinstance(members, Tensor) else list(members)
        groups.append({**options, **entry, "params": listed})
    return groups


def _refuse_options(i: int, group: Mapping[str, Any], options: Mapping[str, Any]) -> NoReturn:
    """Raises ValueError for group i, which has an option that the optimizer does not have."""
    name = next(name for name in group if name not in {"params", *options})
    raise ValueError(
        f"group {i} has an option {name!r}, which this optimizer does not have; "
        f"leave it out; its options are {', '.join(options)}"
    )


class Common(TypedDict, total=False):
    """The options that all of PyTorch's optimizers have: `maximize`, which has its effect here too,
    and options that choose an implementation in PyTorch and have no effect here."""

    maximize: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


def check_common(owner: str, common: Common, options: Mapping[str, Any]) -> None:
    """Checks the keyword arguments `common` of the optimizer `owner` that are not its own: warns of
    options of PyTorch that have no effect here; unknown ones and differentiable=True raise."""
    if not options and "lr" in common:
        raise TypeError(f"{owner} defines neither step nor _update: define one of them")
    for name in common.keys() - Common.__annotations__.keys():
        raise TypeError(
            f"{owner} has no option {name!r}{nearest(name, options)}; its options are "
            f"{', '.join(options)}"
        )
    if common.get("differentiable"):
        raise ValueError(f"{owner}: leave out differentiable=True: steps have no gradients")
    if any(value for name, value in common.items() if name != "maximize"):
        from nnmpi.options.notes import note  # rarely

        note("foreach, fused and capturable change nothing: steps are fused, on any device")
