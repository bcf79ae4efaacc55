"""OwnStep: the base that an optimizer of a program gets whose `step` is its own, as in PyTorch.

    class Mine(optim.Optimizer):
        def __init__(self, params, lr=0.01):
            super().__init__(params, {"lr": lr})

        @nnmpi.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p -= group["lr"] * p.grad

It updates whole parameters, on one rank. A Trainer needs a class that defines `_update` instead.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.autograd import Tensor
from nnmpi.optim import state as states
from nnmpi.optim.groups import Group, Parameters, grouped


class OwnStep:
    """Groups, and a state for each parameter, for a class whose `step` uses them.

    defaults       the options of groups that give none
    param_groups   the parameters, or plain tensors, in groups with their options
    state          a dictionary for each parameter: self.state[p]["exp_avg"]
    """

    has_own_step = True
    lr: Any = None
    """No option of all groups: a program may set it."""
    state: Any = None
    param_groups: list[Group]

    def __init__(self, params: Parameters, defaults: Mapping[str, Any]) -> None:
        self.defaults, self.state = dict(defaults), defaultdict(dict)
        self.param_groups = grouped(params, self.defaults, True)
        if not self.parameters:
            raise ValueError("an optimizer needs at least one parameter, and this list is empty")

    @property
    def parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        self.param_groups += grouped([param_group], self.defaults, True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to None, or to zeros."""
        for p in self.parameters:
            if set_to_none:
                p.grad = None
            elif p.grad_array is not None:
                p.grad_array[...] = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each parameter by its number, and the options of all groups."""
        numbers = {id(p): i for i, p in enumerate(self.parameters)}
        state = {numbers.get(id(key), key): value for key, value in self.state.items()}
        return {"state": state, "param_groups": states.saved_groups(self.param_groups)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads the result of `state_dict`: tensors are copied, in the type of their parameter."""
        saved, parameters = state_dict["param_groups"], self.parameters
        states.check_groups(self.param_groups, saved)
        state = defaultdict[Any, dict[str, Any]](dict)
        for key, of_one in state_dict["state"].items():
            if isinstance(key, int) or (isinstance(key, str) and key.isdecimal()):
                p = parameters[int(key)]
                state[p] = {name: _copied(name, value, p) for name, value in of_one.items()}
            else:
                state[key] = of_one
        groups = [
            {**states.options_of(options), "params": group["params"]}
            for group, options in zip(self.param_groups, saved, strict=True)
        ]
        self.__setstate__({"state": state, "param_groups": groups})

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.param_groups})"


def _copied(name: str, value: Any, p: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    keeps = name == states.STEP or not is_float(p.dtype)
    return (value if keeps else value.to(p)).detach().clone()


def derive(cls: type, recorded: ContextVar[Any]) -> None:
    """Puts OwnStep before the other bases of a class that defines `step`. `recorded` is set while
    nnmpi.compile records a step, which must be one of arrays."""
    cls.__bases__ = (OwnStep, *cls.__bases__)
    step: Callable[..., Any] = vars(cls)["step"]

    @wraps(step)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        if recorded.get() is not None:
            refuse(f"the step of {cls.__name__}, a method of its own,")
        return step(self, *args, **options)

    cls.step = checked  # type: ignore[attr-defined]
