"""States of PyTorch's optimizers, converted to those of nnmpi, for `load_state_dict`.

PyTorch                     nnmpi
exp_avg of Adam, AdamW      gradient_sum = exp_avg / (1 - beta1), and so on
eta of ASGD, mu_product of  one number for each element
NAdam, a number
no step (SGD)               1 after an update
no state of a parameter     zeros: it has not been updated yet
mu of ASGD                  computed from the number of steps
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.autograd import on_host
from nnmpi.nn.parameter import Parameter
from nnmpi.optim.groups import Group

OF_TORCH = ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
"""Options of PyTorch that choose an implementation, or a class: AdamW is a decoupled Adam."""

Arrays = Mapping[str, np.ndarray]
RULES: Mapping[str, tuple[str, Callable[[np.ndarray, Group], np.ndarray]]] = {
    "gradient_sum": ("exp_avg", lambda a, group: a / (1 - group["betas"][0])),
    "squared_gradient_sum": ("exp_avg_sq", lambda a, group: a / (1 - group["betas"][1])),
    "largest_squared_gradient_sum": (
        "max_exp_avg_sq",
        lambda a, group: a / (1 - group["betas"][1]),
    ),
}
"""By the name of a state array: PyTorch's name, and the conversion of its values."""


def converted(
    state: Mapping[str, Any],
    parameters: Sequence[Parameter],
    names: Sequence[str],
    names_of: Callable[[Group], Sequence[str]],
    options: Mapping[str, Any],
    decoupled: bool | None,
) -> dict[str, Any]:
    """Returns a state dict of PyTorch in the form of `Optimizer.state_dict`.

    names     the state arrays of the optimizer; names_of(group): those that a group needs
    options   the options of the optimizer, with their defaults
    decoupled True or False if its weight decay is that of AdamW or Adam, else None

    Names that do not fit are left as they are, for `load_state_dict` to refuse.
    """
    nested, groups = {int(i): of_one for i, of_one in state["state"].items()}, []
    arrays = dict[int, dict[str, Any]]()
    for saved in state["param_groups"]:
        if decoupled is not None and saved.get("weight_decay"):
            _check_decay(decoupled, bool(saved.get("decoupled_weight_decay", decoupled)))
        known = {k: v for k, v in saved.items() if k in options or k not in OF_TORCH}
        group = {**options, **known}
        groups.append({**group, "lr": float(group["lr"])})
        for i in saved["params"]:
            given = {k: on_host(v) for k, v in nested.get(i, {}).items() if v is not None}
            shape = parameters[i].shape if i < len(parameters) else ()
            arrays[i] = _of_parameter(given, group, shape, names, names_of)
    return {"state": arrays, "param_groups": groups}


def _check_decay(ours: bool, theirs: bool) -> None:
    if ours != theirs:
        name = "AdamW" if theirs else "Adam"
        raise ValueError(
            f"the state is that of PyTorch's {name}, whose weight decay is another: make this "
            f"optimizer by optim.{name}"
        )


def _of_parameter(
    given: Arrays,
    group: Group,
    shape: tuple[int, ...],
    names: Sequence[str],
    names_of: Callable[[Group], Sequence[str]],
) -> dict[str, Any]:
    left = {name: array for name, array in given.items() if name != "mu"}
    result = {"step": left.pop("step", np.array(int(bool(given))))}
    needed = names_of(group) if given else ()
    for name in names:
        source, change = RULES.get(name, (name, lambda a, group: a))
        if source in left:
            result[name] = np.broadcast_to(change(left.pop(source), group), shape)
        elif name not in needed:
            result[name] = np.zeros(shape, "float32")
    return {**result, **left}
