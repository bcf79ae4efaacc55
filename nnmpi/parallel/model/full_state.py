"""FullState: the whole tensors of a model or of an optimizer, wherever they are, one at a time.

Files, the digest and --verify read a model through them alone. All ranks go through the entries
together; each whole tensor is put together on the rank that writes, from one rank for each stretch:

    rank 0 (writer)   part of a   ◄── receive ──┐      yields a, then b, ...
    rank 1            part of a   ─── send ─────┘      yields nothing

The moves are those of `nearest.py`, as between arrangements of ranks. An optimizer knows which
slices of the optimizer state are here. So its entries can be read after the end of a run, too.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import is_float, types_of
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter, in_shape, memory_order
from nnmpi.nn.place import Place, Range
from nnmpi.nn.store import FlatStore, values_of
from nnmpi.optim import Optimizer
from nnmpi.optim import state as states
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.moves import VALUES, Holder, MovedTensor, MovePlan
from nnmpi.parallel.model.moving import Read, arrivals
from nnmpi.parallel.model.nearest import Held, plan_moves
from nnmpi.parallel.model.parts import PartTable, everything, memory_axes

WRITER = 0
"""The rank on which tensors are put together."""


class FullTensor(NamedTuple):
    """A whole tensor, on the host and in C order."""

    place: Place
    value: np.ndarray
    in_digest: bool  # a parameter, under the first of its names


class TensorSpec(NamedTuple):
    """An entry before it is read.

    steps   a number of steps, which all ranks know, in place of an array that is moved
    """

    place: Place
    dtype: np.dtype[Any]
    in_digest: bool = False
    steps: int | None = None


class FullState:
    """FullState in the order of a state dict. Every rank makes it, and iterates to the end.

    Raises ValueError, on all ranks, unless the ranges that they have make up the tensors.

    tensors   their arrays are the items without `steps`, in the same order
    have      all ranges of them, with the ranks or files that have these
    reader    makes what reads ranges of this rank and of files, once for all entries
    """

    table: PartTable  # of the entries of a model

    def __init__(
        self,
        comm: Comm,
        tensors: Sequence[MovedTensor],
        items: Sequence[TensorSpec],
        have: Sequence[Held],
        reader: Callable[[], Read],
    ) -> None:
        self._comm, self._tensors, self._items = comm, tensors, items
        self._have, self._reader = have, reader
        self._to_writer = self._plan([WRITER])

    @classmethod
    def of_model(cls, model: Module, comm: Comm, held: Callable[[str], bool] = everything) -> Self:
        """The parameters and buffers, of which each rank of `comm` has some (see PartTable)."""
        table = PartTable(model, comm, held)
        both = list(zip(table.tensors, table.held, strict=True))
        here = (t for (_, t), is_held in both if is_held and isinstance(t, Parameter))
        like = next(here, None)  # each rank has some parameters, and all of a model have one type
        tensors, items, seen = list[MovedTensor](), list[TensorSpec](), set[int]()
        for (place, tensor), is_held in both:
            is_parameter = isinstance(tensor, Parameter)
            typed = tensor if like is None or is_held or not is_parameter else like
            dtype = np.dtype(str(typed.dtype))
            dtype = types_of(dtype).masters if is_parameter else dtype
            axes, arrays = memory_axes(tensor), ((VALUES, dtype),)
            tensors.append(MovedTensor(place.path, place.shape, axes, arrays, not is_parameter))
            items.append(TensorSpec(place, dtype, is_parameter and id(tensor) not in seen))
            seen.add(id(tensor))

        def reader() -> Read:
            by_path = table.current()
            return lambda holder, have, name, lo, hi: _numbers(by_path[have.tensor], lo, hi)

        entries = cls(comm, tensors, items, table.ranges, reader)
        entries.table = table
        return entries

    @classmethod
    def of_optimizer(cls, optimizer: Optimizer, model: Module, comm: Comm) -> Self:
        """The state of an optimizer, by the paths of the parameters of all ranks."""
        parameters = trained(model, optimizer, comm)
        states.check_paths([p.place for p in parameters])
        local = {p.place.path: j for j, p in enumerate(optimizer.parameters)}
        here = [j for p in parameters if (j := local.get(p.place.path)) is not None]
        steps = {held: optimizer.steps[j] for j in here for held in optimizer.owned(j)}
        have, updates = list[Held](), dict[str, int]()
        for rank, ranges in enumerate(gather_objects(comm, steps)):
            for held, n in ranges.items():
                have.append((rank, held))
                updates[held.tensor] = max(n, updates.get(held.tensor, 0))
        arrays = tuple((k, np.dtype(str(optimizer.state[k].dtype))) for k in optimizer.sums)
        tensors, items = list[MovedTensor](), list[TensorSpec]()
        for p in parameters:
            tensors.append(MovedTensor(p.place.path, p.place.shape, p.memory_axes, arrays))
            *state, count = states.state_places([p.place], optimizer.sums)
            items += [TensorSpec(at, dtype) for at, (_, dtype) in zip(state, arrays, strict=True)]
            items.append(TensorSpec(count, np.dtype(int), steps=updates.get(p.place.path, 0)))

        def read(holder: Holder, have: Range, name: str, lo: int, hi: int) -> np.ndarray:
            return backend.to_host(optimizer.numbers(name, local[have.tensor], lo, hi))

        return cls(comm, tensors, items, have, lambda: read)

    def __iter__(self) -> Iterator[FullTensor]:
        """Every entry on the writer; nothing on other ranks."""
        return self._read(self._to_writer, self._comm.rank == WRITER)

    def on_all_ranks(self) -> Iterator[FullTensor]:
        """Every entry on every rank."""
        return self._read(self._to_all, True)

    @property
    def writer_has_all(self) -> bool:
        """Whether the writer, or a file that it reads, has every tensor: no rank sends it any."""
        return all(
            move.holder == WRITER or isinstance(move.holder, str) for move in self._to_writer.moves
        )

    def index(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """(path, type, whole shape) of every entry."""
        return [(item.place.path, item.dtype, item.place.shape) for item in self._items]

    def sha256(self) -> str:
        """One hash of all parameters, whole and in the order of the state dict, on every rank."""
        digest = hashlib.sha256()
        for entry in self:
            if entry.in_digest:
                digest.update(entry.value.tobytes())
        return gather_objects(self._comm, digest.hexdigest())[WRITER]

    @cached_property
    def _to_all(self) -> MovePlan:
        return self._plan(range(self._comm.size))

    def _plan(self, ranks: Sequence[int]) -> MovePlan:
        """Who gives what to these ranks, which need all."""
        need = [(r, Place.of_whole(t.path, t.shape).range()) for t in self._tensors for r in ranks]
        return plan_moves(self._tensors, self._have, need, [0] * self._comm.size)

    def _read(self, plan: MovePlan, is_needed: bool) -> Iterator[FullTensor]:
        """Each entry, on a rank that needs all of them."""
        arrived = arrivals(plan, self._comm, self._reader())
        for place, _, in_digest, steps in self._items if is_needed else ():
            value = np.array(steps)
            if steps is None:
                need, _, numbers = next(arrived)
                axes = plan.tensors[need.tensor].axes
                value = np.asarray(in_shape(numbers, place.shape, axes), order="C")
            yield FullTensor(place, value, in_digest)
        for _ in arrived:
            raise AssertionError("each array is of an item")


def _numbers(tensor: Any, lo: int, hi: int) -> np.ndarray:
    """Numbers of the part of a tensor that this rank has, in the order of memory, on the host."""
    if not isinstance(tensor, Parameter):
        row = tensor.reshape(-1)[lo:hi]
    elif isinstance(tensor.store, FlatStore):
        row = tensor.store.numbers(tensor.index, lo, hi)
    else:
        row = memory_order(tensor, tensor.data)[lo:hi]
    host = backend.to_host(row)
    return host.astype(types_of(host.dtype).masters, copy=False) if is_float(host.dtype) else host


def trained(model: Module, optimizer: Optimizer, comm: Comm) -> list[Parameter]:
    """The parameters that the optimizers of all ranks have; every rank calls it."""
    parameters, updated = list(model.parameters()), {*optimizer.parameters}
    here = {i for i, p in enumerate(parameters) if p in updated}
    of_all = set[int]().union(*gather_objects(comm, here))
    return [parameters[i] for i in sorted(of_all)]


def load_state(optimizer: Optimizer, model: Module, state: Mapping[str, Any], comm: Comm) -> None:
    """Copy what this rank has from a whole state, if it fits the whole model on all ranks.

    Every rank calls it, with all of the state.
    """
    places = [p.place for p in trained(model, optimizer, comm)]
    values = all_or_none(comm, lambda: states.checked(state, places, optimizer.sums))
    optimizer.take(values, [p.place for p in optimizer.parameters])


def first_difference(table: PartTable, buffers: bool | None = None) -> tuple[str, int] | None:
    """The first tensor whose part here differs from that of the first rank with a copy of it.

    Of parameters, of buffers, or of both. Every rank calls it; all have the same names and shapes.
    """
    tensors, first, digests = table.current(), table.first_copies(), dict[str, bytes]()
    for path in first:
        tensor = tensors[path]
        if buffers in (None, not isinstance(tensor, Parameter)):
            array = values_of(tensor) if isinstance(tensor, Parameter) else tensor
            data = np.asarray(backend.to_host(array), order="C").tobytes()
            digests[path] = hashlib.blake2b(data, digest_size=8).digest()
    of_all = gather_objects(table.comm, digests)
    differs = (path for path, digest in digests.items() if of_all[first[path]][path] != digest)
    return next(((path, first[path]) for path in differs), None)
