"""SavedRange: what a rank owns of a model in training, as copies; and how a model gets it back.

    rank 0 of 2   w 0..5   b 0..1  ─┐               ┌─►  w b   rank 0 of 3
    rank 1 of 2   w 5..9           ─┴─►  w, then b ─┼─►  w b   rank 1 of 3
    SavedRange each                   one at a time └─►  w b   rank 2 of 3

No rank has more than one whole tensor at a time beside what it trains.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.comm import Comm
from nnmpi.dtypes import wide
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.place import Place
from nnmpi.nn.state import assign
from nnmpi.nn.store import FlatStore
from nnmpi.optim import Optimizer
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.parts import ModelPart, PartTable, TensorRange, memory_axes, which_held


class SavedRange(NamedTuple):
    """Numbers lo to hi - 1 of the part of a tensor that a rank has, in the order of its memory.

    place    the part; its path is the first name of the tensor
    axes     in the order of memory
    values   on the host, like all arrays here
    steps    how often it was updated
    sums     the running sums of the optimizer, by name; none of what is not trained
    """

    place: Place
    axes: tuple[int, ...]
    lo: int
    hi: int
    values: np.ndarray
    steps: int
    sums: Mapping[str, np.ndarray]


def saved(part: ModelPart, optimizer: Optimizer, whole: bool = True) -> tuple[SavedRange, ...]:
    """Copies of what this rank owns, between two steps; no message is sent."""
    return tuple(
        one._replace(
            values=np.array(one.values),
            sums={name: np.array(numbers) for name, numbers in one.sums.items()},
        )
        for one in owned(part, optimizer, whole)
    )


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
        sums = {
            name: backend.to_host(optimizer.numbers(name, j, lo, hi)) for name in optimizer.sums
        }
        yield SavedRange(place, p.memory_axes, lo, hi, own, optimizer.steps[j], sums)


def _not_trained(place: Place, tensor: Any) -> SavedRange:
    is_parameter = isinstance(tensor, Parameter)
    row = memory_order(tensor, tensor.data) if is_parameter else tensor.reshape(-1)
    values = backend.to_host(row)
    return SavedRange(place, memory_axes(tensor), 0, place.size, values, 0, {})


class Restored:
    """What ranks owned, on its way into a model of theirs. Every rank of `comm` makes it.

    Each rank has what some ranks owned, or nothing; ranks and layout may be others than those that
    it is from. Raises ValueError, on all ranks, if it is not all of this model.
    """

    def __init__(
        self, owned: Sequence[SavedRange], part: ModelPart, dtype: str, comm: Comm
    ) -> None:
        self._dtype, found = np.dtype(wide(np.dtype(dtype))), list(_tensors(part))
        self._tensors = [(place, tensor) for place, tensor, _ in found]
        self._held = [is_held for *_, is_held in found]
        self._owned: list[list[SavedRange]] = [[] for _ in found]
        all_or_none(comm, lambda: self._sort(owned))
        own = [
            TensorRange(i, comm.rank, one.steps, one.lo, one.hi, one.place.part)
            for i, there in enumerate(self._owned)
            for one in there
        ]
        self._table = PartTable(comm, self._tensors, own)
        self._table.check()

    def values_to_model(self) -> None:
        """Copies parameters and buffers. Every rank calls it, before parameters are in a store that
        ranks share."""
        for i, (place, tensor) in enumerate(self._tensors):
            dtype = self._dtype if isinstance(tensor, Parameter) else np.dtype(str(tensor.dtype))
            value = self._table.from_writer(i, dtype, partial(self._numbers, None))
            if self._held[i]:
                assign(tensor, value[place.slices])

    def sums_to_optimizer(self, optimizer: Optimizer) -> None:
        """Copies running sums, and how often each parameter was updated. Every rank calls it."""
        numbers = {p: j for j, p in enumerate(optimizer.parameters)}
        for i, (place, tensor) in enumerate(self._tensors):
            if not isinstance(tensor, Parameter) or not tensor.requires_grad:
                continue
            for name in optimizer.sums:
                value = self._table.from_writer(i, self._dtype, partial(self._numbers, name))
                if tensor in numbers:
                    optimizer.put(name, numbers[tensor], value[place.slices])
            if tensor in numbers:
                optimizer.steps[numbers[tensor]] = self._table.steps[i]

    def _numbers(self, name: str | None, held: TensorRange) -> np.ndarray:
        """The values of a holding of this rank, or its sum of this name."""
        i, _, _, lo, hi, part = held
        there = (x for x in self._owned[i] if x.place.part == part and x.lo <= lo and hi <= x.hi)
        one = next(there)
        array = one.values if name is None else one.sums[name]
        return array[lo - one.lo : hi - one.lo]

    def _sort(self, owned: Sequence[SavedRange]) -> None:
        """By tensor; raises ValueError for what does not fit the model."""
        numbers = {place.path: i for i, (place, _) in enumerate(self._tensors)}
        for one in owned:
            i = numbers.get(one.place.path)
            if i is None:
                raise ValueError(f"{one.place.path} of the snapshot is not part of this model")
            place, tensor = self._tensors[i]
            if one.place.shape != place.shape or one.axes != memory_axes(tensor):
                raise ValueError(
                    f"{one.place.path} has shape {one.place.shape} and order of memory "
                    f"{one.axes} in the snapshot, the model needs {place.shape} and "
                    f"{memory_axes(tensor)}"
                )
            self._owned[i].append(one)
