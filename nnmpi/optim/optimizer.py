"""Optimizer: the base of all optimizers, over flat buffers.

Rules:

- Nothing here communicates. A rank updates what `owned` of the store gives, and has running sums
  for that only; `FullState.of_optimizer` collects those of all ranks, `planning/paper/rank.py`
  counts them.
- Ranges are found again when `_dependencies` changes, which each step compares: what else ranges
  come to depend on belongs there, or sets `_ranges_of` to nothing as `take` does.
- A step leaves the mark of a write (`storage.written`), by which the tape refuses older graphs.
- A running sum lies in the order of memory, like the values; only `state_dict` has shapes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd.recording import tick
from nnmpi.nn.parameter import Parameter, clear_gradients, in_shape, memory_order
from nnmpi.nn.place import Place, Range
from nnmpi.nn.store import FlatStore, Operands, flatten
from nnmpi.optim import state as states
from nnmpi.optim.flat_state import FlatState
from nnmpi.optim.groups import Group, Option, Parameters, grouped
from nnmpi.optim.operands import in_blocks


class FlatRange(NamedTuple):
    """Parameters i..j-1, which one update of flat memory moves: a `Range` is of one tensor alone.

    They are adjacent in a store, from `start` to `end`, are in the same group, and have equal step
    counts.
    """

    i: int
    j: int
    store: FlatStore
    start: int
    end: int
    group: int  # its number

    def follows(self, earlier: "FlatRange") -> bool:
        """Whether one update can move both."""
        end = earlier.j, earlier.store, earlier.end, earlier.group
        return end == (self.i, self.store, self.start, self.group)


_FACTS = attrgetter("has_grad", "store")


class Optimizer:
    """The base of all optimizers: finds ranges of flat memory, and counts the steps of parameters.

    A parameter without a gradient is not updated, and its step not counted.

    param_groups    the parameters in groups, each with its values of all options; they may change
    parameters      those of all groups
    sums            the names of the running sums of a parameter
    """

    lr = Option()
    takes_mixed = False
    """Whether `_update` takes gradients of 16 bits and `mixed`, beside masters on the host: said by
    the class that defines it. Else it gets a piece at a time, with gradients in float32."""

    def __init_subclass__(cls) -> None:
        if "_update" in vars(cls):
            cls.takes_mixed = vars(cls).get("takes_mixed", False)

    def __init__(self, parameters: Parameters, **options: Any) -> None:
        self.defaults = options
        self._take_groups(grouped(parameters, options))

    def _take_groups(self, groups: list[Group]) -> None:
        """Have these groups, with sums of 0; a bad one is refused, and changes nothing."""
        parameters = [p for group in groups for p in group["params"]]
        if not parameters:
            raise ValueError("an optimizer needs at least one parameter; this list is empty")
        if len({id(p) for p in parameters}) < len(parameters):
            raise ValueError("a parameter is in this optimizer's list twice: give each once")
        for i, p in enumerate(parameters):
            if not isinstance(p, Parameter):
                raise ValueError(
                    f"an optimizer needs nn.Parameter objects, as from model.parameters(); "
                    f"number {i} of this list is a {type(p).__name__}"
                )
        for group in groups:
            non_negative("lr", group["lr"])
            self._check(group)
        flatten(parameters)
        self.param_groups, self.parameters = groups, parameters
        self._groups = [number for number, group in enumerate(groups) for _ in group["params"]]
        self.sums = (*dict.fromkeys(n for g in groups for n in self._sums(g)),)
        self.steps = [0] * len(parameters)
        self._running = FlatState(self.sums, parameters)
        self._ranges: list[FlatRange] = []
        self._ranges_of: list[tuple[bool, Any]] = []

    @property
    def state(self) -> dict[str, Array]:
        """The running sums of this rank by name, of one parameter after the other."""
        return self._running.arrays

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Update more parameters from now on, as in add_param_group({"params": ..., "lr": 0.1})."""
        self._convert_state()
        state, steps, n = self.state, self.steps, self._running.starts[-1]
        self._take_groups([*self.param_groups, *grouped([group], self.defaults)])
        self.steps[: len(steps)] = steps
        for name, sums in state.items():
            memory = self.state[name]
            memory[:n] = backend.of(memory).asarray(sums, memory.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """All but the stores, which the first step of a copy creates again."""
        return self.__dict__ | {"_ranges": [], "_ranges_of": []}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. No memory is written: the next backward pass overwrites it.

        Without `set_to_none` those that there are become zeros, by which the next step updates.
        """
        clear_gradients(self.parameters, set_to_none)

    def step(self, lr_factor: float = 1.0) -> None:
        """Update all parameters that have a gradient; a schedule's factor multiplies each rate."""
        if self._ranges_of != self._dependencies():
            flatten(self.parameters)  # copied parameters are not in a flat store
            self._check_stretches()
            self._ranges, self._ranges_of = self._find_ranges(), self._dependencies()
            self._running.convert()
            for p in self.parameters:
                p.seed = None if p.has_grad else p.seed  # no longer the values that were drawn
        self._convert_state()
        written, running = tick(), self._running
        for i, j, store, start, end, number in self._ranges:
            group = self.param_groups[number]
            group, t = {**group, "lr": group["lr"] * lr_factor}, self.steps[i] + 1
            for x in store.updates(start, end, running.arrays, running.starts[i], t):
                for piece in (x,) if self.takes_mixed else in_blocks(x):
                    self._update(piece, group)
            self.steps[i:j] = [t] * (j - i)
            for p in self.parameters[i:j]:
                p.storage.written = written

    # ---- state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies on the host of all running sums and step counts, by the paths of parameters.

        `PATH.NAME` has the shape of the parameter, for each name in `sums`; `PATH.step` is the
        number of its updates.
        """
        places = [p.place for p in self.parameters]
        states.check_paths(places)
        entries: dict[str, np.ndarray] = {}
        for i, (p, place) in enumerate(zip(self.parameters, places, strict=True)):
            here = sum(held.size for held in self.owned(i))
            if place.local_shape != place.shape or (self.sums and here < p.size):
                raise ValueError(
                    f"this rank has only a part of the state of {place.path}, as one of several "
                    "ranks: call Trainer.optimizer_state_dict() on all of them"
                )
            for name in self.sums:
                values = in_shape(self._row(name, i), p.shape, p.memory_axes)
                entries[states.name_of(place, name)] = np.array(values, order="C")
            entries[states.name_of(place, states.STEP)] = np.array(self.steps[i])
        return entries

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state, if all names and shapes fit.

        The state holds whole tensors; the part of each that is here is copied.
        """
        places = [p.place for p in self.parameters]
        self.take(states.checked(state, places, self.sums), places)

    def take(self, state: Mapping[str, np.ndarray], places: Sequence[Place]) -> None:
        """Copies from a state that fits; `places` are where the parameters are in it."""
        self._convert_state()
        self.steps = [int(state[states.name_of(place, states.STEP)]) for place in places]
        self._ranges_of = []  # ranges depend on these counts
        for i, place in enumerate(places):
            for name in self.sums:
                self.put(name, i, state[states.name_of(place, name)][place.slices])

    def owned(self, i: int) -> Iterator[Range]:
        """The numbers of parameter i that this rank updates."""
        return (numbers for numbers, _ in self._running.ranges(i))

    def numbers(self, name: str, i: int, lo: int, hi: int) -> Array:
        """A running sum of numbers lo to hi - 1 of parameter i, which this rank updates, to read:
        as `FlatStore.numbers` is of values."""
        return self._converted(name, i, self._running.numbers(name, i, lo, hi))

    def memory(self, name: str, i: int, lo: int, hi: int) -> Array:
        """The memory of the same, to write."""
        self._convert_state()
        return self._running.numbers(name, i, lo, hi)

    def put(self, name: str, i: int, values: np.ndarray) -> None:
        """Copies a running sum of parameter i from an array of the shape of the parameter."""
        row = memory_order(self.parameters[i], values)
        for _, _, lo, hi in self.owned(i):
            memory = self.memory(name, i, lo, hi)
            memory[...] = backend.of(memory).asarray(row[lo:hi], memory.dtype)

    def _row(self, name: str, i: int) -> np.ndarray:
        """A running sum of parameter i, of which this rank updates all, on the host."""
        row = np.empty(self.parameters[i].size, str(self.state[name].dtype))
        for _, _, lo, hi in self.owned(i):
            row[lo:hi] = backend.to_host(self.numbers(name, i, lo, hi))
        return row

    def _check_stretches(self) -> None:
        """Refuses a store in which this rank updates another part of the parameters than before."""
        if self.sums and not self._running.fits:
            raise ValueError(
                "this optimizer has the state of a part of the parameters only, as one of "
                "several ranks; create another optimizer over model.parameters()"
            )

    def _check(self, group: Group) -> None:
        """Raises ValueError for bad options; subclasses define it."""

    def _sums(self, group: Group) -> tuple[str, ...]:
        """The running sums that a group with these options needs."""
        return ()

    def _convert_state(self) -> None:
        """Before running sums are changed: express them by the options of now, if these changed."""

    def _converted(self, name: str, i: int, numbers: Array) -> Array:
        """Numbers of a running sum of parameter i, expressed by the options of now."""
        return numbers

    def _update(self, x: Operands, group: Group) -> None:
        """One step in one stretch of memory, of any length; subclasses define it."""
        raise TypeError(f"{type(self).__name__} does not define _update")

    def _dependencies(self) -> list[tuple[bool, Any]]:
        """The facts that ranges depend on: the parameters' stores, and which have gradients."""
        return [*map(_FACTS, self.parameters)]

    def _find_ranges(self) -> list[FlatRange]:
        """The longest ranges of parameters that have a gradient."""
        ranges: list[FlatRange] = []
        for i, p in enumerate(self.parameters):
            if not p.has_grad:
                continue
            assert isinstance(p.store, FlatStore)
            start, end = p.store.spans[p.index]
            new = FlatRange(i, i + 1, p.store, start, end, self._groups[i])
            if ranges and new.follows(ranges[-1]) and self.steps[i] == self.steps[i - 1]:
                ranges[-1] = ranges[-1]._replace(j=new.j, end=new.end)
            else:
                ranges.append(new)
        return ranges


def non_negative(name: str, value: float) -> float:
    """The value; raises ValueError unless it is finite and at least 0."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} {value} must be a number and at least 0")
    return value
