"""An optimizer's state as dictionaries: state arrays, step counts, options."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import Storage
from nnmpi.nn.parameter import Parameter, in_shape
from nnmpi.nn.place import Place, StateArray
from nnmpi.nn.state import checked_arrays
from nnmpi.optim.groups import Group

STEP = "step"


class StateArrays(dict[str, Array]):
    """The state arrays of an optimizer by name; `forget` begins its state anew."""

    def __init__(self, arrays: Mapping[str, Array], forget: Callable[[], None]) -> None:
        super().__init__(arrays)
        self._forget = forget

    def clear(self) -> None:
        """Makes the state that of a new optimizer."""
        self._forget()

    def __missing__(self, key: object) -> Array:
        raise KeyError(
            f"{key!r:.40}: the state of an optimizer is arrays of all parameters by name "
            f"({', '.join(self) or 'here none'}); that of parameter i is "
            "optimizer.state_dict()['state'][i]"
        )


class StateTensor(Tensor):
    """A tensor of `Optimizer.state_dict`, in the memory of the optimizer `owner`; a step count is a
    copy. It looks up the memory by `read` at each use, since the optimizer may move its state."""

    __slots__ = ("_is_count", "_read", "owner")

    def __init__(self, owner: object, read: Callable[[], Array], is_count: bool) -> None:
        self.owner, self._read, self._is_count = owner, read, is_count
        self.node = self.viewed = self.grad_array = None
        self._requires_grad = False
        self.storage = Storage()

    @property
    def _array(self) -> Array:
        """The state, as an array in the memory of the optimizer."""
        return self._read()

    def converted(self, value: Any) -> Any:
        if self._is_count:
            raise RuntimeError(
                "writing in place to a step count would not reach the optimizer: load a state dict "
                'with another one, as after state["state"][0]["step"] = 3'
            )
        return super().converted(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, (self.array,)


StateTensor.__name__ = Tensor.__name__  # messages to users say "Tensor"


def name_of(place: Place, name: str) -> str:
    """Returns the name in a state dict, such as "fc.weight.exp_avg", of the state array `name` of
    the parameter at `place`; raises ValueError for a `name` with a dot or @."""
    if not {*".@"}.isdisjoint(name):
        raise ValueError(f"a state array is called {name!r}: leave out {'.'!r} and {'@'!r}")
    return f"{place.path}.{name}" if place.path else name


def split(name: str) -> tuple[str, str]:
    """Splits "fc.weight.momentum_buffer" into the parameter's path and the state's name."""
    path, _, state = name.rpartition(".")
    return path, state


def check_paths(places: Sequence[Place]) -> None:
    """Raises ValueError if two parameters have one path: their states would be mixed up."""
    seen: dict[str, int] = {}
    for i, place in enumerate(places):
        first = seen.setdefault(place.path, i)
        if first != i:
            raise ValueError(
                f"parameters {first} and {i} of this optimizer have the same path "
                f"{place.path!r}, which names their state: make them parts of one module"
            )


def checked(state: Mapping[str, Any], entries: Iterable[Place]) -> dict[str, np.ndarray]:
    """Returns the arrays of a state dict, on the host. Raises ValueError unless its names and
    shapes are those of `entries`, and its step counts are whole numbers."""
    entries = [Place.of_whole(entry.path, entry.shape) for entry in entries]
    values = checked_arrays(state, [*dict.fromkeys(entries)], "optimizer")
    for name in (name for name in values if name.rpartition(".")[2] == STEP):
        count = values[name].item()
        if not (count >= 0 and count == count // 1):
            raise ValueError(f"{name} is {count}: it must be a whole number of at least 0")
    return values


def check_whole(
    parameters: Sequence[Parameter],
    owned: Callable[[int], Iterable[tuple[int, int]]],
    has_arrays: bool,
) -> None:
    """Raises ValueError unless this rank has the whole of each parameter and, with `has_arrays`,
    updates all of it. owned(i) yields the ranges of parameter i that it updates."""
    for i, p in enumerate(parameters):
        place, updated = p.place, sum(hi - lo for lo, hi in owned(i))
        if place.local_shape != place.shape or (has_arrays and updated < p.size):
            raise ValueError(
                f"this rank has only a part of the state of {place.path}, as one of several "
                "ranks: call Trainer.optimizer_state_dict() on all of them"
            )


def whole(arrays: Iterable[StateArray]) -> dict[str, np.ndarray]:
    """Returns copies on the host of state arrays, whole and in the shape of parameters."""
    rows = dict[str, tuple[StateArray, np.ndarray]]()
    for x in arrays:
        _, row = rows.setdefault(x.name, (x, np.empty(x.place.size, x.dtype)))
        row[x.lo : x.hi] = x.elements()
    return {
        name: np.array(in_shape(row, x.place.shape, x.axes), order="C")
        for name, (x, row) in rows.items()
    }


# ---- by the numbers of parameters, as in PyTorch


def numbered(parameters: Sequence[Parameter]) -> list[Place]:
    """Returns each parameter's Place with its index as path, as PyTorch names them."""
    return [p.place._replace(path=str(i)) for i, p in enumerate(parameters)]


def by_number(
    names: Iterable[str], tensor: Callable[[int, str], Tensor]
) -> dict[int, dict[str, Tensor]]:
    """Returns {2: {"step": tensor(2, "step")}} for names like "2.step"."""
    nested = dict[int, dict[str, Tensor]]()
    for path in dict.fromkeys(names):
        number, _, name = path.partition(".")
        nested.setdefault(int(number), {})[name] = tensor(int(number), name)
    return nested


def by_name(nested: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns {2: {"step": x}} as {"2.step": x}; numbers may be text, as in files."""
    return {f"{i}.{name}": value for i, of_one in nested.items() for name, value in of_one.items()}


def saved_groups(groups: Iterable[Group]) -> list[Group]:
    """Returns groups as in a state dict, with indices in place of parameters."""
    saved, start = [], 0
    for group in groups:
        end = start + len(group["params"])
        saved.append({**group, "params": [*range(start, end)]})
        start = end
    return saved


def options_of(saved: Group) -> Group:
    """Returns the options of a parameter group in a state dict, without the list of parameters.
    Lists become tuples, since a file has lists in place of these."""
    options = {name: value for name, value in saved.items() if name != "params"}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}


def check_groups(groups: Sequence[Group], saved: Sequence[Group]) -> None:
    """Raises ValueError unless saved groups have as many parameters as these."""
    ours, theirs = ([len(group["params"]) for group in which] for which in (groups, saved))
    if ours != theirs:
        raise ValueError(
            f"the state is that of groups with {theirs} parameters, this optimizer has groups "
            f"with {ours}: make it with the same groups"
        )
