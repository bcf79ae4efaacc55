"""Owned: what a rank owns of a model in training; and how it gets back into a model elsewhere.

    rank 0 of 2   Owned(w, 0..5) Owned(b, 0..1)  ─┐               ┌─►  w b   rank 0 of 3
    rank 1 of 2   Owned(w, 5..9)                 ─┴─►  w, then b ─┼─►  w b   rank 1 of 3
                                                   one at a time  └─►  w b   rank 2 of 3

No rank has more than one whole tensor at a time beside what it trains.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.place import Place
from nnmpi.nn.state import assign
from nnmpi.nn.store import FlatStore
from nnmpi.optim import Optimizer
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.model.parts import which_held
from nnmpi.parallel.model.pieces import Own, Piece, PieceTable


class Owned(NamedTuple):
    """Numbers lo to hi - 1 of the part of a tensor that a rank has, in the order of its memory.

    place    the part; its path is the first name of the tensor
    layout   the axes in the order of memory
    values   copies on the host, like all arrays here
    steps    how often it was updated
    sums     the running sums of the optimizer, by name; none of what is not trained
    """

    place: Place
    layout: tuple[int, ...]
    lo: int
    hi: int
    values: np.ndarray
    steps: int
    sums: Mapping[str, np.ndarray]

    def within(self, piece: Piece, name: str | None) -> np.ndarray:
        """A piece of the values, or of the sum of this name."""
        array = self.values if name is None else self.sums[name]
        return array[piece.lo - self.lo : piece.hi - self.lo]


def owned(part: ModelPart, optimizer: Optimizer, whole: bool = True) -> tuple[Owned, ...]:
    """Copies of what this rank owns, between two steps; no message is sent.

    That is what its optimizer updates. Of frozen parameters and of buffers, all that is here, if
    Without `whole`, as on a parameter server, tensors that it does not update are left out: its
    copies are old.
    """
    numbers = {p: j for j, p in enumerate(optimizer.parameters)}
    found: list[Owned] = []
    for place, tensor, is_held in _tensors(part):
        if isinstance(tensor, Parameter) and tensor in numbers:
            found += _stretches(place, optimizer, numbers[tensor])
        elif whole and is_held:
            found.append(_all_of(place, tensor))
    return tuple(found)


def _tensors(part: ModelPart) -> Iterator[tuple[Place, Any, bool]]:
    """Each parameter and buffer once, under its first name, and whether this rank has a part."""
    tensors, seen = list(part.model.tensors()), set[int]()
    for (place, tensor), is_held in zip(tensors, which_held(tensors, part.held), strict=True):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield place, tensor, is_held


def _stretches(place: Place, optimizer: Optimizer, j: int) -> Iterator[Owned]:
    """What this rank updates of parameter j, without padding."""
    p = optimizer.parameters[j]
    assert isinstance(p.store, FlatStore)
    values = p.store.owned(*p.store.spans[p.index])
    rows = {name: optimizer.row(k, j) for k, name in enumerate(optimizer.sums)}
    for (lo, stop), (_, array, _) in zip(optimizer.stretches[j], values, strict=True):
        hi = min(stop, p.size)
        if lo < hi:
            own = np.array(backend.to_host(array[: hi - lo]))
            sums = {name: row[lo:hi].copy() for name, row in rows.items()}
            yield Owned(place, p.layout, lo, hi, own, optimizer.steps[j], sums)


def _all_of(place: Place, tensor: Any) -> Owned:
    """A tensor that is not trained."""
    if isinstance(tensor, Parameter):
        layout, row = tensor.layout, memory_order(tensor, tensor.data)
    else:
        layout, row = tuple(range(tensor.ndim)), tensor.reshape(-1)
    return Owned(place, layout, 0, place.size, np.array(backend.to_host(row)), 0, {})


class Restored:
    """What ranks owned, on its way into a model of theirs. Every rank of `comm` makes it.

    Each rank has what some ranks owned, or nothing; ranks and layout may be others than those that
    it is from. Raises ValueError, on all ranks, if it is not all of this model.
    """

    def __init__(self, owned: Sequence[Owned], part: ModelPart, dtype: str, comm: Comm) -> None:
        self._part, self._dtype, self._comm = part, np.dtype(dtype), comm
        self._tensors = list(_tensors(part))
        self._number = {place.path: i for i, (place, *_) in enumerate(self._tensors)}
        self._owned: list[list[Owned]] = [[] for _ in self._tensors]
        all_or_none(comm, lambda: self._sort(owned))
        places = [place for place, *_ in self._tensors]
        own = [
            Own(i, one.steps, Piece(one.place.part, one.lo, one.hi))
            for i, found in enumerate(self._owned)
            for one in found
        ]
        self._table = PieceTable(comm, places, own)

    def values_to_model(self) -> None:
        """Copies parameters and buffers. Every rank calls it, before parameters are in a store that
        ranks share."""
        for i, (place, tensor, is_held) in enumerate(self._tensors):
            is_parameter = isinstance(tensor, Parameter)
            dtype = self._dtype if is_parameter else np.dtype(str(tensor.dtype))
            value = self._whole(i, None, dtype)
            if is_held:
                assign(tensor, value[place.slices])
                if is_parameter:
                    tensor.seed = None  # no longer the values that were drawn

    def sums_to_optimizer(self, optimizer: Optimizer) -> None:
        """Copies running sums, and how often each parameter was updated. Every rank calls it."""
        numbers = {p: j for j, p in enumerate(optimizer.parameters)}
        for i, (place, tensor, _) in enumerate(self._tensors):
            if not isinstance(tensor, Parameter) or not tensor.requires_grad:
                continue
            for k, name in enumerate(optimizer.sums):
                value = self._whole(i, name, self._dtype)
                if tensor in numbers:
                    optimizer.put(k, numbers[tensor], value[place.slices])
            if tensor in numbers:
                optimizer.steps[numbers[tensor]] = self._table.steps[i]

    def _whole(self, i: int, name: str | None, dtype: np.dtype[Any]) -> np.ndarray:
        """The values of tensor i, or its sum of this name, on every rank."""
        return self._table.on_all_ranks(i, dtype, self._layout(i), lambda p: self._own(i, p, name))

    def _layout(self, i: int) -> tuple[int, ...]:
        _, tensor, _ = self._tensors[i]
        return tensor.layout if isinstance(tensor, Parameter) else tuple(range(tensor.ndim))

    def _own(self, i: int, piece: Piece, name: str | None) -> np.ndarray:
        part, lo, hi = piece
        there = (x for x in self._owned[i] if x.place.part == part and x.lo <= lo and hi <= x.hi)
        return next(there).within(piece, name)

    def _sort(self, owned: Sequence[Owned]) -> None:
        """By tensor; raises ValueError for what does not fit the model."""
        for one in owned:
            i = self._number.get(one.place.path)
            if i is None:
                raise ValueError(f"{one.place.path} of the snapshot is not part of this model")
            shape = self._tensors[i][0].shape
            if one.place.shape != shape or one.layout != self._layout(i):
                raise ValueError(
                    f"{one.place.path} has shape {one.place.shape} and order of memory "
                    f"{one.layout} in the snapshot, the model needs {shape} and {self._layout(i)}"
                )
            self._owned[i].append(one)
