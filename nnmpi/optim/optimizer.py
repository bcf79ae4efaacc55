"""Optimizer: the base of all optimizers, which updates many parameters in flat buffers by one call.

Rules:

- Nothing in this file communicates. A rank updates only those slices of the flat buffers that the
  store's `owned` yields, and has optimizer state for these only. `state_arrays` describes the state
  for the code that saves, moves and gathers it.
- Each step compares `_dependencies`, and finds the ranges of parameters that one call can update
  again if these facts have changed. If ranges come to depend on another fact, add it there, or
  clear `_ranges_of` as `set_steps` does.
- A step marks the values as written (`storage.written`), so that autograd refuses older graphs.
- A state array is flat, in the order of memory, like the values; only `state_dict` has shapes.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import tick
from nnmpi.nn.parameter import Parameter, clear_gradients, in_shape
from nnmpi.nn.place import Place, StateArray
from nnmpi.nn.store import FlatStore, Operands, Shard, flatten
from nnmpi.optim import state as states
from nnmpi.optim.flat_state import FlatState
from nnmpi.optim.groups import Common, Group, Option, Parameters, check_common, grouped
from nnmpi.optim.replica_state import ReplicaState

if TYPE_CHECKING:
    from nnmpi.optim.leaves import Leaf


class FlatRange(NamedTuple):
    """Consecutive parameters, i..j-1, updated together: they lie one after the other in `store`, at
    elements start..end-1, are in the same group, and have equal step counts."""

    i: int
    j: int
    store: FlatStore
    start: int
    end: int
    group: int  # its number
    shards: Sequence[Shard] = ()  # those of its elements that this rank updates

    def follows(self, earlier: "FlatRange") -> bool:
        """True if this range begins where `earlier` ends, in the same store and group."""
        end = earlier.j, earlier.store, earlier.end, earlier.group
        return end == (self.i, self.store, self.start, self.group)


_FACTS = attrgetter("has_grad", "store")


instead_of_step: ContextVar[Callable[[Any, float], None] | None]
instead_of_step = ContextVar("instead_of_step", default=None)
"""While a step is recorded: called with (optimizer, factor) in place of its step."""


class Optimizer:
    """Finds the slices of flat memory to update, and counts the steps of each parameter.

    A parameter without a gradient is not updated, and its step is not counted. Subclasses define
    `_state_names(group)`, which returns the names of the state arrays, and `_update(x, group)`,
    which updates `x.values` and `x.state[name]` in place with the gradients `x.grads` at step
    `x.t`. These are flat arrays of any length, with a part of the parameters, so the new value of
    an element may depend only on elements at the same index.

        param_groups    the parameters in groups with their options, which may be changed
        parameters      the parameters of all groups
        state_names     the names of the state arrays of a parameter
        replica_state   the state arrays that differ between data-parallel replicas; None if none do
    """

    lr = Option()
    _leaves: Sequence["Leaf"] = ()
    replica_state: ReplicaState | None = None
    by_parameter = False
    """True if each parameter is updated separately, with its own options."""

    whole = False
    """True if an update needs all elements of a parameter at once."""

    decoupled: bool | None = None
    """Whether weight decay is AdamW's (True) or Adam's; None if both, or only one, exist."""

    takes_momentum = False
    """True if the option --momentum applies to this optimizer."""

    takes_mixed = False
    """True if `_update` takes 16-bit gradients and `mixed`, with masters on the host.

    It applies to the class that defines `_update`, not to subclasses with another one. Other
    classes get one block at a time, with float32 gradients (`Operands.blocks`).
    """

    has_own_step = False
    """True if `step` is a program's own, which updates parameters one by one (`own_step`)."""

    def __init_subclass__(cls) -> None:
        # an inherited True is not about the subclass's own `_update`
        if "_update" in vars(cls):
            cls.takes_mixed = vars(cls).get("takes_mixed", False)
        is_plain = (cls._update, cls._state_names) == (Optimizer._update, Optimizer._state_names)
        if "step" in vars(cls) and is_plain and not cls.has_own_step:
            from nnmpi.optim.own_step import derive  # rarely

            derive(cls, instead_of_step)

    def __init__(
        self, parameters: Parameters, common: Common | None = None, /, **options: Any
    ) -> None:
        if common:
            check_common(type(self).__name__, common, options)
        maximize = {"maximize": (common or {}).get("maximize", False)}
        self.defaults = options if common is None else options | maximize
        self._take_groups(grouped(parameters, self.defaults))

    def _take_groups(self, groups: list[Group]) -> None:
        """Replaces the groups, with a state of zeros; raises ValueError before any change."""
        leaves = [*self._leaves]
        if not all(isinstance(p, Parameter) for group in groups for p in group["params"]):
            from nnmpi.optim.leaves import adopted  # rarely

            leaves += adopted(groups)
        parameters = [p for group in groups for p in group["params"]]
        if not parameters:
            raise ValueError("an optimizer needs at least one parameter, and this list is empty")
        if len({id(p) for p in parameters}) < len(parameters):
            raise ValueError("a parameter is in this optimizer's list twice: give each once")
        for group in groups:
            non_negative("lr", group["lr"])
            self._check(group)
        flatten(parameters)
        self._leaves = leaves
        self._share()
        self.param_groups, self.parameters = groups, parameters
        self._groups = [number for number, group in enumerate(groups) for _ in group["params"]]
        self.state_names = (*dict.fromkeys(n for g in groups for n in self._state_names(g)),)
        self.steps = [0] * len(parameters)
        self._flat_state = FlatState(self.state_names, parameters)
        self._ranges: list[FlatRange] = []
        self._ranges_of: list[tuple[bool, Any]] = []

    @property
    def state(self) -> dict[str, Array]:
        """The state arrays of this rank by name, such as "momentum_buffer"; each is flat, with one
        parameter after the other. As in PyTorch, `state.clear()` begins it anew."""
        return states.StateArrays(self._flat_state.arrays, self._forget)

    def _forget(self) -> None:
        """Makes the state that of a new optimizer: arrays of zeros, and no steps."""
        for array in self._flat_state.arrays.values():
            array[...] = 0
        self.set_steps([0] * len(self.parameters))

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds a group of parameters, as in add_param_group({"params": ..., "lr": 0.1})."""
        self._convert_state()
        state, steps, n = self.state, self.steps, self._flat_state.starts[-1]
        self._take_groups([*self.param_groups, *grouped([group], self.defaults)])
        self.steps[: len(steps)] = steps
        for name, old_values in state.items():
            memory = self.state[name] if name in self.state else self.add_state(name)
            memory[:n] = backend.of(memory).asarray(old_values, memory.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without cached ranges; a copy's first step finds them."""
        return self.__dict__ | {"_ranges": [], "_ranges_of": []}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, without writing memory: the next backward pass overwrites it.

        With `set_to_none=False` existing gradients become zeros, and the next step uses them.
        """
        clear_gradients(self.parameters, set_to_none)
        for leaf in self._leaves:
            leaf.clear(set_to_none)

    def _collect(self) -> None:
        """Copies the gradients of plain tensors to the parameters that stand for them."""
        for leaf in self._leaves:
            leaf.collect()

    def _share(self) -> None:
        """Makes plain tensors use the memory of their parameters, after an update."""
        for leaf in self._leaves:
            leaf.share()

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        lr_factor: float = 1.0,
        squares: Sequence[float] = (),
    ) -> Any:
        """Updates all parameters that have a gradient. A `closure`, which computes the gradients,
        is called first, and its loss is returned; without one, None.

        lr_factor   multiplies the learning rates of all groups in this step only, for schedules
                    that do not change the option `lr`
        squares     for LAMB and LARS on ranks that have only parts of parameters: what the method
                    `squares` returns on each rank, summed over the ranks. Empty: this rank has
                    whole parameters. Other optimizers ignore it
        """
        loss = None if closure is None else _loss_of(closure)
        if (instead := instead_of_step.get()) is not None:
            instead(self, lr_factor)
            return loss
        if self._leaves:
            self._collect()
        self._prepare()
        self._begin(squares)
        written, flat_state = tick(), self._flat_state
        for i, j, store, _, _, number, shards in self._ranges:
            group, t = self._group_of(number, i, lr_factor), self.steps[i] + 1
            for x in store.updates(shards, flat_state.arrays, flat_state.starts[i], t):
                x = x.negative() if group.get("maximize") else x
                for piece in (x,) if self.takes_mixed else x.blocks(self.whole):
                    self._update(piece, group)
            self.steps[i:j] = [t] * (j - i)
            for p in self.parameters[i:j]:
                p.storage.written = written
        if self._leaves:
            self._share()
        return loss

    def squares(self) -> list[float]:
        """Returns, for each parameter, the squared norm of its values and of its change, over this
        rank's elements. `step` takes their sums over ranks. Only LAMB and such need them."""
        return []

    def set_steps(self, steps: Sequence[int]) -> None:
        """Sets the number of updates of each parameter, as when a state is loaded."""
        self.steps, self._ranges_of = [*steps], []  # ranges depend on the counts

    def add_state(self, name: str) -> Array:
        """Adds a state array of zeros, saved and loaded like the others."""
        self.state_names = (*self.state_names, name)
        array = self._flat_state.add(name)
        self._ranges_of = []
        return array

    def operands(self, of: Container[int] | None = None) -> Iterator[tuple[slice, Operands]]:
        """Yields (slice, Operands) for the parts that this rank updates, where state_array[slice]
        would have the state; with `of`, only of these parameters."""
        for i, (at, p) in enumerate(zip(self._flat_state.starts, self.parameters, strict=False)):
            if of is not None and i not in of:
                continue
            assert isinstance(p.store, FlatStore)
            start, end = p.store.spans[p.index]
            for x in p.store.updates(p.store.own_shards(start, end), {}, at, 0):
                yield slice(at, at + len(x.values)), x
                at += len(x.values)

    # ---- state

    def state_arrays(self) -> Iterator[StateArray]:
        """Yields this rank's parts of the state of each parameter, views of memory that a step
        changes: `PATH.NAME` for each name in `state_names`, and the number of its updates,
        `PATH.step`."""
        return self._state_arrays([p.place for p in self.parameters])

    def _state_arrays(self, places: Sequence[Place]) -> Iterator[StateArray]:
        updates_any = any(True for i in range(len(self.parameters)) for _ in self.owned(i))
        dtypes = {name: str(self.state[name].dtype) for name in self.state_names}
        for i, (p, place) in enumerate(zip(self.parameters, places, strict=True)):
            axes = p.memory_axes
            for lo, hi, at in self._flat_state.ranges(i):
                for name, dtype in dtypes.items():
                    here = place._replace(path=states.name_of(place, name))
                    how = partial(self._read, name, i, at - lo), partial(self._write, name, at)
                    yield StateArray(here, axes, lo, hi, dtype, False, *how)
            if updates_any:  # else the counts are those of other ranks
                count = Place.of_whole(states.name_of(place, states.STEP), ())
                how = partial(self._read_count, i), partial(self._write_count, i)
                yield StateArray(count, (), 0, 1, "int64", False, *how)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each parameter by its index, and the options of all groups, which
        refer to parameters by index.

        The state of a parameter has a tensor for each name in `state_names`, in its shape, and
        `step`, the number of its updates. As in PyTorch, the tensors share the memory of the
        optimizer: a dict that a program keeps has the new state after a step, with the options of
        the time when it was made. `copy.deepcopy` of it is a snapshot.
        """
        states.check_whole(self.parameters, self.owned, bool(self.state_names))
        arrays = self._state_arrays(states.numbered(self.parameters))
        tensors = states.by_number((x.name for x in arrays), self._tensor)
        return {"state": tensors, "param_groups": states.saved_groups(self.param_groups)}

    def named_state(self) -> dict[str, np.ndarray]:
        """Returns copies of the state on the host as `PATH.NAME` and `PATH.step`."""
        states.check_paths([p.place for p in self.parameters])
        states.check_whole(self.parameters, self.owned, bool(self.state_names))
        return states.whole(self.state_arrays())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `state_dict` or `named_state`; raises ValueError unless all names and
        shapes fit. If the state has options, it replaces those of the groups.

        The state has whole tensors, of which this rank copies the part that it updates.
        """
        if "param_groups" in state:
            states.check_groups(self.param_groups, state["param_groups"])
            state = self._of_torch(state)
            given = states.by_name(state["state"])
            arrays = [*self._state_arrays(states.numbered(self.parameters))]
            values = states.checked(given, (x.place for x in arrays))
            for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
                group.update(states.options_of(saved))
            # what lies in the memory of this optimizer stays, and is converted with it
            arrays = [x for x in arrays if getattr(given[x.name], "owner", None) is not self]
        else:
            states.check_paths([p.place for p in self.parameters])
            arrays = [*self.state_arrays()]
            values = states.checked(state, (x.place for x in arrays))
        for x in arrays:
            x.put(x.part_of(values[x.name]))

    def _of_torch(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a state dict of PyTorch converted to this one's, any other as it is."""
        if not any("foreach" in group for group in state["param_groups"]):
            return state
        from nnmpi.optim.torch_state import converted  # rarely

        for group in state["param_groups"]:
            for name in self._state_names({**self.defaults, **group}):
                if name not in self.state_names:  # as that of momentum, if the state has it
                    self.add_state(name)
        names = self.state_names, self._state_names
        return converted(state, self.parameters, *names, self.defaults, self.decoupled)

    def owned(self, i: int) -> Iterator[tuple[int, int]]:
        """Yields (lo, hi) of the ranges of parameter i that this rank updates."""
        return ((lo, hi) for lo, hi, _ in self._flat_state.ranges(i))

    def _tensor(self, i: int, name: str) -> Tensor:
        """Returns the state `name`, or the step count, of parameter i as a tensor."""

        def read() -> Array:
            if name == states.STEP:
                return np.array(self.steps[i])
            self._convert_state()
            p, at = self.parameters[i], self._flat_state.starts[i]
            return in_shape(self.state[name][at : at + p.size], p.shape, p.memory_axes)

        return states.StateTensor(self, read, name == states.STEP)

    def _read(self, name: str, i: int, at: int, lo: int, hi: int) -> np.ndarray:
        """Returns the state `name`, such as "momentum_buffer", of elements lo..hi-1 of parameter i,
        on the host. Element 0 of the parameter has its state at index `at` of the state array."""
        return backend.to_host(self._converted(name, i, self.state[name][at + lo : at + hi]))

    def _write(self, name: str, at: int, values: np.ndarray) -> None:
        self._convert_state()
        memory = self.state[name][at : at + len(values)]
        memory[...] = backend.of(memory).asarray(values, memory.dtype)

    def _read_count(self, i: int, lo: int, hi: int) -> np.ndarray:
        return np.array([self.steps[i]])[lo:hi]

    def _write_count(self, i: int, values: np.ndarray) -> None:
        self.steps[i] = int(values[0])
        self._ranges_of = []  # ranges depend on the counts

    def _prepare(self) -> None:
        """Finds ranges that one call can update, if gradients or memory have changed since;
        converts state arrays as options ask."""
        if self._ranges_of != self._dependencies():
            self._look_again()
        self._convert_state()

    def _look_again(self) -> None:
        flatten(self.parameters)  # a copied model has parameters of their own
        self._check_slices()
        self._ranges, self._ranges_of = self._find_ranges(), self._dependencies()
        self._flat_state.convert()
        for p in self.parameters:
            p.seed = None if p.has_grad else p.seed  # its values no longer follow from the seed

    def _begin(self, squares: Sequence[float]) -> None:
        """Prepares a step before anything changes. `squares` has two squared norms for each
        parameter, summed over ranks, for LAMB and LARS."""

    def _group_of(self, number: int, i: int, lr_factor: float) -> Group:
        """Returns a copy of parameter group `number`, with its learning rate times `lr_factor` as
        "lr". Subclasses such as LAMB choose the rate for parameter `i`."""
        group = self.param_groups[number]
        return {**group, "lr": float(group["lr"] * lr_factor)}

    def _check_slices(self) -> None:
        """Raises ValueError if this rank updates other slices than those of its state."""
        if self.state_names and not self._flat_state.fits:
            raise ValueError(
                "this optimizer has state for only a part of the parameters, since it was used on "
                "one of several ranks; create another optimizer over model.parameters()"
            )

    def _check(self, group: Group) -> None:
        """Raises ValueError for invalid options of a group; subclasses define it."""

    def _state_names(self, group: Group) -> tuple[str, ...]:
        """Returns the names of the state arrays that a group with these options needs."""
        return ()

    def _convert_state(self) -> None:
        """Converts state arrays after a change of options on which they depend; here nothing."""

    def _converted(self, name: str, i: int, numbers: Array) -> Array:
        """Returns `numbers`, elements of the state array `name` of parameter i, converted as
        `_convert_state` would after a change of options. The base class returns them unchanged."""
        return numbers

    def _update(self, x: Operands, group: Group) -> None:
        """Updates one slice of the parameters in place; subclasses define it. `x` has the values,
        gradients and state arrays of the slice, flat and of any length; `group` has the options."""
        raise TypeError(f"{type(self).__name__} does not define _update")

    def _dependencies(self) -> list[tuple[bool, Any]]:
        """Returns for each parameter whether it has a gradient, and its store."""
        return [*map(_FACTS, self.parameters)]

    def _find_ranges(self) -> list[FlatRange]:
        """Returns the largest ranges that one call can update: adjacent, with gradients, of one
        group and step count."""
        ranges: list[FlatRange] = []
        for i, p in enumerate(self.parameters):
            if not p.has_grad:
                continue
            assert isinstance(p.store, FlatStore)
            start, end = p.store.spans[p.index]
            new = FlatRange(i, i + 1, p.store, start, end, self._groups[i])
            # Adam corrects its bias by the step count, so one update needs one count
            follows = not self.by_parameter and ranges and new.follows(ranges[-1])
            if follows and self.steps[i] == self.steps[i - 1]:
                ranges[-1] = ranges[-1]._replace(j=new.j, end=new.end)
            else:
                ranges.append(new)
        return [r._replace(shards=[*r.store.own_shards(r.start, r.end)]) for r in ranges]


def _loss_of(closure: Callable[[], Any]) -> Any:
    from nnmpi.optim.closure import called  # rarely

    return called(closure)


def non_negative(name: str, value: float) -> float:
    """Returns `value`; raises ValueError unless it is finite and at least 0."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} {value} must be finite and at least 0")
    return value


def check_eps(eps: float) -> None:
    """Raises ValueError unless `eps` is finite and above 0."""
    if non_negative("eps", eps) == 0:
        raise ValueError("eps 0 divides 0 by 0 where a gradient is 0; give one above 0, like 1e-8")


def check_betas(betas: Sequence[float]) -> None:
    """Raises ValueError unless all betas are at least 0 and less than 1."""
    if not all(0 <= b < 1 for b in betas):
        raise ValueError(f"betas {betas} must be at least 0 and less than 1")
