"""Entries: the whole tensors of a model or of an optimizer, wherever they are, one at a time.

Files, the digest and --verify read a model through them alone. All ranks go through the entries
together; each whole tensor is put together on the rank that writes, from one rank for each stretch:

    rank 0 (writer)   part of a   ◄── receive ──┐      yields a, then b, ...
    rank 1            part of a   ─── send ─────┘      yields nothing

An optimizer knows which stretches of the running sums are here. So its entries can be read after
the end of a run, too.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import is_float, wide
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.place import Place, Range
from nnmpi.nn.store import FlatStore, values_of
from nnmpi.optim import Optimizer
from nnmpi.optim import state as states
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.parts import WRITER, PartTable, Placed, Read, everything


class Entry(NamedTuple):
    """A whole tensor, on the host and in C order."""

    place: Place
    value: np.ndarray
    in_digest: bool  # a parameter, under the first of its names


class Item(NamedTuple):
    """An entry before it is read.

    i      the tensor of the table whose ranges it has
    read   reads a range of this rank; or a number of steps, which all ranks know
    """

    place: Place
    i: int
    dtype: np.dtype[Any]
    read: Read | int
    in_digest: bool = False


class Entries:
    """Entries in the order of a state dict. Every rank makes it, and iterates to the end."""

    def __init__(self, table: PartTable, items: Sequence[Item]) -> None:
        table.check()
        self.table, self._items = table, items

    @classmethod
    def of_model(cls, model: Module, comm: Comm, held: Callable[[str], bool] = everything) -> Self:
        """The parameters and buffers, of which each rank of `comm` has some (see PartTable)."""
        table = PartTable.of_model(model, comm, held)
        both = list(zip(table.tensors, table.held, strict=True))
        here = (t for (_, t), is_held in both if is_held and isinstance(t, Parameter))
        like = next(here, None)  # each rank has some parameters, and all of a model have one type
        items, seen = list[Item](), set[int]()
        for i, ((place, tensor), is_held) in enumerate(both):
            is_parameter = isinstance(tensor, Parameter)
            typed = tensor if like is None or is_held or not is_parameter else like
            dtype = np.dtype(str(typed.dtype))
            dtype = np.dtype(wide(dtype)) if is_parameter else dtype
            first = is_parameter and id(tensor) not in seen
            items.append(Item(place, i, dtype, partial(_numbers, table.tensors, i), first))
            seen.add(id(tensor))
        return cls(table, items)

    @classmethod
    def of_optimizer(cls, optimizer: Optimizer, model: Module, comm: Comm) -> Self:
        """The state of an optimizer, by the paths of the parameters of all ranks."""
        parameters = trained(model, optimizer, comm)
        states.check_paths([p.place for p in parameters])
        local = {p: j for j, p in enumerate(optimizer.parameters)}
        here = [p for p in parameters if p in local]
        own = [one for p in here for one in optimizer.owned(local[p])]
        updates = {p.place.path: optimizer.steps[local[p]] for p in here}
        told = gather_objects(comm, {one.tensor: updates[one.tensor] for one in own})

        def read(name: str, p: Parameter, one: Range) -> np.ndarray:
            return backend.to_host(optimizer.numbers(name, local[p], one.lo, one.hi))

        items = list[Item]()
        for i, p in enumerate(parameters):
            *sums, count = states.state_places([p.place], optimizer.sums)
            for name, place in zip(optimizer.sums, sums, strict=True):
                dtype = np.dtype(str(optimizer.state[name].dtype))
                items.append(Item(place, i, dtype, partial(read, name, p)))
            steps = max((of_rank.get(p.place.path, 0) for of_rank in told), default=0)
            items.append(Item(count, i, np.dtype(int), steps))
        return cls(PartTable(comm, [(p.place, p) for p in parameters], own), items)

    def __iter__(self) -> Iterator[Entry]:
        """Every entry on the writer; nothing on other ranks."""
        for entry in self._read(self.table.on_writer):
            if self.table.comm.rank == WRITER:
                yield entry

    def on_all_ranks(self) -> Iterator[Entry]:
        """Every entry on every rank."""
        return self._read(self.table.on_all_ranks)

    def index(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """(path, type, whole shape) of every entry."""
        return [(item.place.path, item.dtype, item.place.shape) for item in self._items]

    def sha256(self) -> str:
        """One hash of all parameters, whole and in the order of the state dict, on every rank."""
        digest = hashlib.sha256()
        for entry in self:
            if entry.in_digest:
                digest.update(entry.value.tobytes())
        return gather_objects(self.table.comm, digest.hexdigest())[WRITER]

    def _read(self, whole: Callable[[int, np.dtype[Any], Read], Any]) -> Iterator[Entry]:
        """Each entry, as `whole` puts it together."""
        self.table.refresh()
        for place, i, dtype, read, in_digest in self._items:
            value = np.array(read) if isinstance(read, int) else whole(i, dtype, read)
            yield Entry(place, value, in_digest)


def _numbers(tensors: Placed, i: int, one: Range) -> np.ndarray:
    """The numbers of a range of tensor i, which this rank has, on the host."""
    _, tensor = tensors[i]
    if not isinstance(tensor, Parameter):
        row = tensor.reshape(-1)[one.lo : one.hi]
    elif isinstance(tensor.store, FlatStore):
        row = tensor.store.numbers(tensor.index, one.lo, one.hi)
    else:
        row = memory_order(tensor, tensor.data)[one.lo : one.hi]
    host = backend.to_host(row)
    return host.astype(wide(host.dtype), copy=False) if is_float(host.dtype) else host


def trained(model: Module, optimizer: Optimizer, comm: Comm) -> list[Parameter]:
    """The parameters that the optimizers of all ranks have; every rank calls it."""
    parameters, own = list(model.parameters()), {*optimizer.parameters}
    here = {i for i, p in enumerate(parameters) if p in own}
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
    table.refresh()
    own = dict[int, bytes]()
    for i, ((_, tensor), is_held) in enumerate(zip(table.tensors, table.held, strict=True)):
        if is_held and buffers in (None, not isinstance(tensor, Parameter)):
            array = values_of(tensor) if isinstance(tensor, Parameter) else tensor
            data = np.asarray(backend.to_host(array), order="C").tobytes()
            own[i] = hashlib.blake2b(data, digest_size=8).digest()
    of_all = gather_objects(table.comm, own)
    for i, digest in own.items():
        first = table.first_copy(i)
        if of_all[first][i] != digest:
            return table.tensors[i][0].path, first
    return None
