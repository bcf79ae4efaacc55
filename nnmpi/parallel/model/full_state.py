"""FullState: the whole tensors of a model or of an optimizer, gathered one at a time.

Files, the digest of the parameters and --verify read a model only in this way. All ranks iterate
together, and each whole tensor is put together on the rank that writes. Every element is sent by
one rank:

    rank 0 (writer)   part of a   ◄── receive ──┐      yields a, then b, ...
    rank 1            part of a   ─── send ─────┘      yields nothing

The moves are planned by `nearest.py`, like those between two arrangements of ranks. An optimizer
knows which ranges of its state are on this rank, so the full state can be read after a run, too.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
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
from nnmpi.optim.replica_state import DIFFERENCE, RESIDUAL, ReplicaState, of_one
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.moves import VALUES, Holder, MovedTensor, MovePlan
from nnmpi.parallel.model.moving import Read, arrivals
from nnmpi.parallel.model.nearest import Held, plan_moves
from nnmpi.parallel.model.parts import PartTable, everything, memory_axes
from nnmpi.parallel.model.snapshot import replica_path

WRITER = 0
"""The rank that gathers whole tensors."""


class FullTensor(NamedTuple):
    """A whole tensor of a model or of an optimizer, on the host and in C order."""

    place: Place
    value: np.ndarray
    in_digest: bool  # a parameter, under the first of its names


class TensorSpec(NamedTuple):
    """The path, shape and dtype of a tensor of `FullState`, before its values are gathered.

    steps   a number of optimizer steps, which all ranks know: nothing is moved for it
    terms   how many arrays are moved for it, one of each replica, and added up
    """

    place: Place
    dtype: np.dtype[Any]
    in_digest: bool = False
    steps: int | None = None
    terms: int = 1


class FullState:
    """The whole tensors of a model or of an optimizer, in the order of its state dict.

    Every rank makes it, and iterates to the end. Raises ValueError, on all ranks, unless the ranges
    that the ranks have make up the tensors.

    tensors   the tensors to move: the arrays of all `items` without `steps`, in the same order
    have      all ranges of these tensors, each with the rank or file that holds it
    reader    returns the function that reads ranges of this rank and of files; called once a pass
    """

    table: PartTable  # who has which ranges; only `of_model` sets it

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
        """The parameters and buffers of a model, each rank of `comm` having a part (see
        `PartTable`)."""
        table = PartTable(model, comm, held)
        rows = list(zip(table.tensors, table.held, strict=True))
        local = (t for (_, t), is_held in rows if is_held and isinstance(t, Parameter))
        # a tensor of another stage has no array here; all parameters of a model have one dtype
        like = next(local, None)
        tensors, items, seen = list[MovedTensor](), list[TensorSpec](), set[int]()
        for (place, tensor), is_held in rows:
            is_parameter = isinstance(tensor, Parameter)
            typed = tensor if like is None or is_held or not is_parameter else like
            dtype = np.dtype(str(typed.dtype))
            dtype = types_of(dtype).masters if is_parameter else dtype
            axes, arrays = memory_axes(tensor), ((VALUES, dtype),)
            tensors.append(MovedTensor(place.path, place.shape, axes, arrays, not is_parameter))
            items.append(TensorSpec(place, dtype, is_parameter and id(tensor) not in seen))
            seen.add(id(tensor))

        def reader() -> Read:
            by_path = table.current()  # read late: a module may have assigned another array
            return lambda holder, have, name, lo, hi: _numbers(by_path[have.tensor], lo, hi)

        entries = cls(comm, tensors, items, table.ranges, reader)
        entries.table = table
        return entries

    @classmethod
    def of_optimizer(cls, optimizer: Optimizer, model: Module, comm: Comm) -> Self:
        """The optimizer state of a model, under the paths of the parameters of all ranks: where
        each replica has its own, that of the first one, and the sum of all residuals."""
        parameters = trained(model, optimizer, comm)
        states.check_paths([p.place for p in parameters])
        index = dict(_state_given(optimizer))
        steps = {
            held._replace(tensor=path): optimizer.steps[j]
            for path, j in index.items()
            for held in optimizer.owned(j)
        }
        have, updates = list[Held](), dict[str, int]()
        for rank, ranges in enumerate(gather_objects(comm, steps)):
            for held, n in ranges.items():
                have.append((rank, held))
                updates[held.tensor] = max(n, updates.get(held.tensor, 0))
        names, replica = of_one(optimizer.sums), optimizer.replica_state or ReplicaState()
        arrays = [(k, np.dtype(str(optimizer.state[k].dtype))) for k in names]
        terms = [replica.replicas if name == RESIDUAL else 1 for name in names]
        alone = tuple(array for array in arrays if array[0] != RESIDUAL)
        tensors, items = list[MovedTensor](), list[TensorSpec]()
        for p in parameters:
            path, shape, axes = p.place.path, p.place.shape, p.memory_axes
            tensors.append(MovedTensor(path, shape, axes, alone))
            for row in arrays[len(alone) :]:  # the residuals
                paths = [replica_path(path, RESIDUAL, r) for r in range(replica.replicas)]
                tensors += [MovedTensor(of_replica, shape, axes, (row,)) for of_replica in paths]
            *state, count = states.state_places([p.place], names)
            items += [
                TensorSpec(place, dtype, terms=n)
                for place, (_, dtype), n in zip(state, arrays, terms, strict=True)
            ]
            # every rank knows the number of steps, so it is not moved
            items.append(TensorSpec(count, np.dtype(int), steps=updates.get(path, 0)))

        def read(holder: Holder, have: Range, name: str, lo: int, hi: int) -> np.ndarray:
            return backend.to_host(optimizer.numbers(name, index[have.tensor], lo, hi))

        return cls(comm, tensors, items, have, lambda: read)

    def __iter__(self) -> Iterator[FullTensor]:
        """Yields every tensor on the writer, and nothing on other ranks."""
        return self._read(self._to_writer, self._comm.rank == WRITER)

    def on_all_ranks(self) -> Iterator[FullTensor]:
        """Yields every tensor on every rank."""
        return self._read(self._to_all, True)

    @property
    def writer_has_all(self) -> bool:
        """True if no rank has to send: the writer, or a file that it reads, has every tensor."""
        return all(
            move.holder == WRITER or isinstance(move.holder, str) for move in self._to_writer.moves
        )

    def index(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """The (path, dtype, whole shape) of every tensor."""
        return [(item.place.path, item.dtype, item.place.shape) for item in self._items]

    def sha256(self) -> str:
        """The SHA-256 of all parameters, whole and in the order of the state dict; the same on
        every rank."""
        digest = hashlib.sha256()
        for entry in self:  # empty on other ranks, which have to iterate all the same: they send
            if entry.in_digest:
                digest.update(entry.value.tobytes())
        return gather_objects(self._comm, digest.hexdigest())[WRITER]

    @cached_property
    def _to_all(self) -> MovePlan:
        return self._plan(range(self._comm.size))

    def _plan(self, ranks: Sequence[int]) -> MovePlan:
        """Plans the moves that bring all tensors, whole, to each of these ranks."""
        need = [(r, Place.of_whole(t.path, t.shape).range()) for t in self._tensors for r in ranks]
        return plan_moves(self._tensors, self._have, need, [0] * self._comm.size)

    def _read(self, plan: MovePlan, is_needed: bool) -> Iterator[FullTensor]:
        """Carries out the moves of a plan and yields every tensor, whole, if `is_needed`, else
        nothing. Every rank has to iterate to the end, because it may have to send."""
        arrived = arrivals(plan, self._comm, self._reader())
        for place, _, in_digest, steps, terms in self._items if is_needed else ():
            value = np.array(steps)
            if steps is None:
                need, _, flat = next(arrived)
                for _ in range(1, terms):
                    flat = flat + next(arrived)[2]
                axes = plan.tensors[need.tensor].axes
                value = np.asarray(in_shape(flat, place.shape, axes), order="C")
            yield FullTensor(place, value, in_digest)
        for _ in arrived:
            raise AssertionError("every array that arrives belongs to an item")


def _numbers(tensor: Any, lo: int, hi: int) -> np.ndarray:
    """Elements lo..hi of this rank's part of a tensor, in memory order, on the host; for 16-bit
    parameters the float32 masters."""
    if not isinstance(tensor, Parameter):
        row = tensor.reshape(-1)[lo:hi]
    elif isinstance(tensor.store, FlatStore):
        row = tensor.store.numbers(tensor.index, lo, hi)
    else:
        row = memory_order(tensor, tensor.data)[lo:hi]
    host = backend.to_host(row)
    return host.astype(types_of(host.dtype).masters, copy=False) if is_float(host.dtype) else host


def _state_given(optimizer: Optimizer) -> Iterator[tuple[str, int]]:
    """Yields a path and the index of a parameter for what this rank gives of the state of an
    optimizer: all of it as the first replica, and its own residual as any."""
    r = optimizer.replica_state.replica if optimizer.replica_state else 0
    for j, p in enumerate(optimizer.parameters):
        if r == 0:
            yield p.place.path, j
        if RESIDUAL in optimizer.sums:
            yield replica_path(p.place.path, RESIDUAL, r), j


def trained(model: Module, optimizer: Optimizer, comm: Comm) -> list[Parameter]:
    """The parameters of this rank's model that the optimizer of some rank updates; every rank calls
    it."""
    parameters, updated = list(model.parameters()), {*optimizer.parameters}
    indices = {i for i, p in enumerate(parameters) if p in updated}
    all_indices = set[int]().union(*gather_objects(comm, indices))
    return [parameters[i] for i in sorted(all_indices)]


def load_state(optimizer: Optimizer, model: Module, state: Mapping[str, Any], comm: Comm) -> None:
    """Copies this rank's part of a whole optimizer state, as `FullState.of_optimizer` gathers it,
    after a check that it fits the whole model.

    Every rank calls it, with the whole state. Raises ValueError on all ranks if one finds a misfit.
    """
    places = [p.place for p in trained(model, optimizer, comm)]
    replica = optimizer.replica_state or ReplicaState()
    values = all_or_none(comm, lambda: states.checked(state, places, of_one(optimizer.sums)))
    zeros = [DIFFERENCE, *[RESIDUAL] * (replica.replica > 0)]  # the first replica has the sum
    for place, name in product(places, zeros):
        values[states.name_of(place, name)] = np.broadcast_to(0.0, place.shape)
    optimizer.take(values, [p.place for p in optimizer.parameters])


def first_difference(table: PartTable, buffers: bool | None = None) -> tuple[str, int] | None:
    """Returns the first tensor that differs from its copy on another rank, and that rank; else
    None.

    This rank's part is compared with the lowest rank that has the same part. `buffers` selects
    buffers (True), parameters (False) or both (None). Every rank calls it; all have the same names
    and shapes.
    """
    tensors, first, digests = table.current(), table.first_copies(), dict[str, bytes]()
    for path in first:
        tensor = tensors[path]
        if buffers in (None, not isinstance(tensor, Parameter)):
            array = values_of(tensor) if isinstance(tensor, Parameter) else tensor
            data = np.asarray(backend.to_host(array), order="C").tobytes()
            digests[path] = hashlib.blake2b(data, digest_size=8).digest()
    # digests and not values: a few bytes for each tensor
    all_digests = gather_objects(table.comm, digests)
    differs = (path for path, digest in digests.items() if all_digests[first[path]][path] != digest)
    return next(((path, first[path]) for path in differs), None)
