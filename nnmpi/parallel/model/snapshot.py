"""SavedRange: what a rank owns of a model in training, as copies; and how a model gets it back.

rank 0 of 2   w 0..5   b 0..1  ─┐                  ┌─►  w b   rank 0 of 3
rank 1 of 2   w 5..9           ─┴─►  moves.py  ────┼─►  w b   rank 1 of 3
SavedRange each                      moving.py     └─►  w b   rank 2 of 3
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi import backend
from nnmpi.comm import Comm
from nnmpi.dtypes import wide
from nnmpi.nn.parameter import Parameter, in_shape, memory_order
from nnmpi.nn.place import Part, Place
from nnmpi.nn.state import assign
from nnmpi.nn.store import FlatStore
from nnmpi.optim import Optimizer
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.moves import (
    VALUES,
    Arrays,
    MovedTensor,
    MovePlan,
    TensorRange,
)
from nnmpi.parallel.model.moving import carry_out
from nnmpi.parallel.model.nearest import plan_moves
from nnmpi.parallel.model.parts import ModelPart, memory_axes, which_held


class Numbers(Protocol):
    """A row of numbers, in memory or in a file: a slice of it is an array on the host."""

    def __getitem__(self, where: slice, /) -> np.ndarray:
        """The numbers of a slice, which has a start and a stop."""


class SavedRange(NamedTuple):
    """Numbers lo to hi - 1 of the part of a tensor that a rank has, in the order of its memory.

    place    the part; its path is the first name of the tensor
    axes     in the order of memory
    values   on the host, like all arrays here, or what reads a file
    steps    how often it was updated
    sums     the running sums of the optimizer, by name; none of what is not trained
    file     the name of the file that it is in, for all ranks alike; None: this rank's memory
    """

    place: Place
    axes: tuple[int, ...]
    lo: int
    hi: int
    values: Numbers
    steps: int
    sums: Mapping[str, Numbers]
    file: str | None = None

    def array(self, name: str) -> Numbers:
        """The values, or a running sum."""
        return self.values if name == VALUES else self.sums[name]


def saved(part: ModelPart, optimizer: Optimizer, whole: bool = True) -> tuple[SavedRange, ...]:
    """Copies of what this rank owns, between two steps; no message is sent."""
    found = list[SavedRange]()
    for one in owned(part, optimizer, whole):
        here = slice(0, one.hi - one.lo)
        sums = {name: np.array(numbers[here]) for name, numbers in one.sums.items()}
        found.append(one._replace(values=np.array(one.values[here]), sums=sums))
    return tuple(found)


def owned(part: ModelPart, optimizer: Optimizer, whole: bool = True) -> Iterator[SavedRange]:
    """What this rank owns between two steps, where the next one changes it.

    That is what its optimizer updates; and of frozen parameters and of buffers, all that is here.
    Without `whole`, as on a parameter server, tensors that it does not update are left out: its
    copies are old.
    """
    numbers = {p: j for j, p in enumerate(optimizer.parameters)}
    for place, tensor, is_held in _tensors(part):
        if isinstance(tensor, Parameter) and tensor in numbers:
            yield from _updated(place, optimizer, numbers[tensor])
        elif whole and is_held:
            yield _not_trained(place, tensor)


def _tensors(part: ModelPart) -> Iterator[tuple[Place, Any, bool]]:
    """Each parameter and buffer once, under its first name, and whether this rank has a part."""
    tensors, seen = list(part.model.tensors()), set[int]()
    for (place, tensor), is_held in zip(tensors, which_held(tensors, part.held), strict=True):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield place, tensor, is_held


def _updated(place: Place, optimizer: Optimizer, j: int) -> Iterator[SavedRange]:
    """What this rank updates of parameter j."""
    p = optimizer.parameters[j]
    assert isinstance(p.store, FlatStore)
    for lo, hi in optimizer.own_stretches(j):
        own = backend.to_host(p.store.numbers(p.index, lo, hi))
        rows = {name: optimizer.numbers(name, j, lo, hi) for name in optimizer.sums}
        sums = {name: backend.to_host(row) for name, row in rows.items()}
        yield SavedRange(place, p.memory_axes, lo, hi, own, optimizer.steps[j], sums)


def _not_trained(place: Place, tensor: Any) -> SavedRange:
    is_parameter = isinstance(tensor, Parameter)
    row = memory_order(tensor, tensor.data) if is_parameter else tensor.reshape(-1)
    values = backend.to_host(row)
    return SavedRange(place, memory_axes(tensor), 0, place.size, values, 0, {})


class Restored:
    """What ranks owned, on its way into a model of theirs. Every rank of `comm` makes it.

    Each rank has what some ranks owned, or nothing, and all of them have what is in files; ranks
    and layout may be others than those that it is from. Raises ValueError, on all ranks, if it is
    not all of this model.
    """

    def __init__(
        self, owned: Sequence[SavedRange], part: ModelPart, dtype: str, comm: Comm
    ) -> None:
        self._comm, self._wide = comm, np.dtype(wide(np.dtype(dtype)))
        self._tensors = tensors = [*_tensors(part)]
        self._owned = all_or_none(comm, lambda: self._sorted(owned))
        own = [(key, bool(one.sums)) for key, one in self._owned.items() if one.file is None]
        in_files = [(key, bool(one.sums)) for key, one in self._owned.items() if one.file]
        self._have = [*chain.from_iterable(gather_objects(comm, own)), *in_files]
        self._nodes = [ranks[0] for ranks in gather_objects(comm, comm.node())]
        dtypes = (
            self._wide if isinstance(t, Parameter) else np.dtype(str(t.dtype))
            for _, t, _ in tensors
        )
        self._values = self._plan(
            [((VALUES, dtype),) for dtype in dtypes],
            self._copies(),
            [
                TensorRange(i, comm.rank, 0, 0, place.size, place.part)
                for i, (place, _, is_held) in enumerate(tensors)
                if is_held
            ],
        )

    def values_to_model(self) -> None:
        """Copies parameters and buffers. Every rank calls it, before parameters are in a store that
        ranks share."""

        def write(need: TensorRange, name: str, numbers: np.ndarray) -> None:
            place, tensor, _ = self._tensors[need.i]
            assign(tensor, in_shape(numbers, place.local_shape, memory_axes(tensor)))

        carry_out(self._values, self._comm, self._read, write)

    def sums_to_optimizer(self, optimizer: Optimizer) -> None:
        """Copies running sums, and how often each parameter was updated. Every rank calls it."""
        numbers = {id(p): j for j, p in enumerate(optimizer.parameters)}
        here = {i: numbers[id(t)] for i, (_, t, _) in enumerate(self._tensors) if id(t) in numbers}
        steps = dict[int, int]()
        for one, _ in self._have:
            steps[one.i] = max(one.steps, steps.get(one.i, 0))
        for i, j in here.items():
            optimizer.steps[j] = steps[i]
        have = [one for one, has_sums in self._have if has_sums]
        need = [
            TensorRange(i, self._comm.rank, 0, lo, hi, optimizer.parameters[j].place.part)
            for i, j in here.items()
            for lo, hi in optimizer.own_stretches(j)
        ]

        def write(need: TensorRange, name: str, values: np.ndarray) -> None:
            sums = optimizer.numbers(name, here[need.i], need.lo, need.hi)
            sums[...] = backend.of(sums).asarray(values, sums.dtype)

        if optimizer.sums:
            arrays = tuple((name, self._wide) for name in optimizer.sums)
            plan = self._plan([arrays] * len(self._tensors), have, need)
            carry_out(plan, self._comm, self._read, write)

    def _read(self, have: TensorRange, name: str, lo: int, hi: int) -> np.ndarray:
        one = self._owned[have]
        return one.array(name)[lo - one.lo : hi - one.lo]

    def _plan(
        self,
        arrays: Sequence[Arrays],
        have: Iterable[TensorRange],
        own_need: Sequence[TensorRange],
    ) -> MovePlan:
        """What is moved of these arrays of each tensor. Every rank calls it."""
        both = zip(self._tensors, arrays, strict=True)
        tensors = [MovedTensor(p.path, p.shape, memory_axes(t), own) for (p, t, _), own in both]
        need = chain.from_iterable(gather_objects(self._comm, own_need))
        return plan_moves(tensors, have, need, self._nodes)

    def _copies(self) -> Iterator[TensorRange]:
        """Who has values; of the copies of a buffer, which may differ, the first one alone."""
        first = dict[tuple[int, Part], TensorRange]()
        for one, _ in self._have:
            is_buffer = not isinstance(self._tensors[one.i][1], Parameter)
            if not is_buffer or first.setdefault((one.i, one.part), one) is one:
                yield one

    def _sorted(self, owned: Sequence[SavedRange]) -> dict[TensorRange, SavedRange]:
        """What this rank has, and what is in files, by tensor; raises ValueError for what does not
        fit the model."""
        numbers = {place.path: i for i, (place, *_) in enumerate(self._tensors)}
        found = dict[TensorRange, SavedRange]()
        for one in owned:
            i = numbers.get(one.place.path)
            if i is None:
                raise ValueError(f"{one.place.path} of the snapshot is not part of this model")
            place, tensor, _ = self._tensors[i]
            if one.place.shape != place.shape or one.axes != memory_axes(tensor):
                raise ValueError(
                    f"{one.place.path} has shape {one.place.shape} and order of memory "
                    f"{one.axes} in the snapshot, the model needs {place.shape} and "
                    f"{memory_axes(tensor)}"
                )
            holder = self._comm.rank if one.file is None else one.file
            key = TensorRange(i, holder, one.steps, one.lo, one.hi, one.place.part)
            found.setdefault(key, one)
        return found
