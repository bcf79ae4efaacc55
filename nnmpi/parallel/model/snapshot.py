"""SavedRange: copies of the ranges that a rank owns, and Restored, which loads them into a model.

    rank 0 of 2   w 0..5   b 0..1  ─┐                           ┌─►  w b   rank 0 of 3
    rank 1 of 2   w 5..9           ─┴─►  a plan, carried out  ──┼─►  w b   rank 1 of 3
    SavedRange each                                             └─►  w b   rank 2 of 3

`nearest.py` plans who sends what to whom, and `moving.py` sends it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import named, types_of
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter, in_shape, memory_order
from nnmpi.nn.place import Part, Place, Range
from nnmpi.nn.state import assign
from nnmpi.nn.store import FlatStore
from nnmpi.optim import Optimizer
from nnmpi.optim.replica_state import ReplicaState
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.moves import VALUES, Arrays, Holder, MovedTensor, MovePlan
from nnmpi.parallel.model.moving import Write, carry_out
from nnmpi.parallel.model.nearest import Held, plan_moves
from nnmpi.parallel.model.parts import ModelPart, memory_axes, which_held

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class ValuesInFile:
    """A one-dimensional array in a file, which is read when it is sliced.

    file   the name of the file, the same on all ranks
    read   read(lo, hi) returns elements lo..hi
    """

    file: str
    read: Callable[[int, int], np.ndarray]

    def __getitem__(self, where: slice) -> np.ndarray:
        return self.read(where.start, where.stop)


FlatValues: TypeAlias = np.ndarray | ValuesInFile
"""A one-dimensional array, in host memory or in a file; a slice of it is an array on the host."""


class StateRange(NamedTuple, Generic[T]):
    """A range of a tensor, with a T for its values and a T for each array of its optimizer state.

    A T is an array (`SavedRange`), the name of its dtype (`StateRange[str]`), or its place in a
    file. The fields are a row of the manifest of a checkpoint, so `range` is a property and not a
    field.

    path, part, lo, hi   make up the `range`; the path is the first name of the tensor
    shape, axes          of the whole tensor; the axes are in memory order
    steps                the number of updates of the tensor so far
    sums                 the optimizer state by name; empty for a tensor that is not trained
    """

    path: str
    shape: tuple[int, ...]
    part: Part
    axes: tuple[int, ...]
    lo: int
    hi: int
    steps: int
    values: T
    sums: Mapping[str, T]

    @property
    def place(self) -> Place:
        """The place of the part in the whole tensor."""
        return Place(self.path, self.shape, self.part)

    @property
    def range(self) -> Range:
        """The range of elements."""
        return self.place.range(self.lo, self.hi)

    @property
    def is_trained(self) -> bool:
        """True if an optimizer updates the tensor."""
        return self.steps > 0 or bool(self.sums)

    def array(self, name: str) -> T:
        """The values, or the array of the optimizer state with this name."""
        return self.values if name == VALUES else self.sums[name]

    def map(self, f: Callable[[T], U]) -> "StateRange[U]":
        """The range with f applied to its values and to each array of its optimizer state."""
        return StateRange(*self[:7], f(self.values), {k: f(row) for k, row in self.sums.items()})


SavedRange: TypeAlias = StateRange[FlatValues]
"""A range with its values and optimizer state, as arrays in memory or in a file."""


def holder_of(saved_range: SavedRange, rank: int) -> Holder:
    """The file that has the values of a saved range, or else `rank`."""
    return saved_range.values.file if isinstance(saved_range.values, ValuesInFile) else rank


def dtypes_of(saved_range: SavedRange) -> StateRange[str]:
    """The range with the names of dtypes in place of arrays."""
    return saved_range.map(lambda row: row[0:0].dtype.name)


def bytes_of(saved_range: StateRange[str]) -> int:
    """The bytes of a range: of its values and of its optimizer state."""
    types = (saved_range.values, *saved_range.sums.values())
    return (saved_range.hi - saved_range.lo) * sum(int(named(name).itemsize) for name in types)


def saved(part: ModelPart, optimizer: Optimizer, whole: bool = True) -> tuple[SavedRange, ...]:
    """Copies of the ranges that this rank owns, made between two steps; no message is sent."""
    return tuple(saved_range.map(np.array) for saved_range in owned(part, optimizer, whole))


def owned(part: ModelPart, optimizer: Optimizer, whole: bool = True) -> Iterator[SavedRange]:
    """Yields the ranges that this rank owns between two steps, as views that the next step may
    change.

    They are the ranges that its optimizer updates, and its whole part of frozen parameters and of
    buffers. `whole=False` leaves out the tensors that it does not update: on a parameter server
    these are old copies.
    """
    index = {p: j for j, p in enumerate(optimizer.parameters)}
    for place, tensor, is_held in _tensors(part):
        if isinstance(tensor, Parameter) and tensor in index:
            yield from _updated(place, optimizer, index[tensor])
        elif whole and is_held:
            is_parameter = isinstance(tensor, Parameter)
            row = memory_order(tensor, tensor.data) if is_parameter else tensor.reshape(-1)
            values = backend.to_host(row)
            yield SavedRange(*place, memory_axes(tensor), 0, place.size, 0, values, {})


REPLICA = "@"
"""The sign before the number of a replica, in paths of state that each replica has with other
values."""


def replica_path(path: str, name: str, replica: int) -> str:
    """The path under which a snapshot has a state array of one replica, such as
    `fc.weight.momentum_buffer@2`."""
    return f"{path}.{name}{REPLICA}{replica}"


def _tensors(part: ModelPart) -> Iterator[tuple[Place, Any, bool]]:
    """Yields (place, tensor, is_held) for each parameter and buffer once, under its first name."""
    tensors, seen = list(part.model.tensors()), set[int]()
    for (place, tensor), is_held in zip(tensors, which_held(tensors, part.held), strict=True):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield place, tensor, is_held


def _updated(place: Place, optimizer: Optimizer, j: int) -> Iterator[SavedRange]:
    """Yields the ranges of parameter j that this rank updates, with their values and optimizer
    state."""
    p = optimizer.parameters[j]
    assert isinstance(p.store, FlatStore)
    for _, _, lo, hi in optimizer.owned(j):
        values = backend.to_host(p.store.numbers(p.index, lo, hi))
        rows = {name: optimizer.numbers(name, j, lo, hi) for name in optimizer.sums}
        state = {name: backend.to_host(row) for name, row in rows.items()}
        where, steps = (p.memory_axes, lo, hi), optimizer.steps[j]
        if optimizer.replica_state is not None:  # as tensors of this replica alone
            for name in optimizer.replica_state.names:
                path = replica_path(place.path, name, optimizer.replica_state.replica)
                of_replica = place._replace(path=path)
                yield SavedRange(*of_replica, *where, steps, state.pop(name), {})
        yield SavedRange(*place, *where, steps, values, state)


class Restored:
    """The ranges that ranks owned when a snapshot was taken, ready to be loaded. Every rank of
    `comm` makes it.

    Each rank brings the ranges of some ranks, or none, and all know the same files. The number of
    ranks and the layout may differ from those of the snapshot. Raises ValueError, on all ranks, if
    the ranges do not make up this model.
    """

    def __init__(
        self, owned: Sequence[SavedRange], part: ModelPart, dtype: str, comm: Comm
    ) -> None:
        self._comm, self._wide = comm, types_of(np.dtype(dtype)).masters
        self._tensors = {row[0].path: row for row in _tensors(part)}
        self._owned = all_or_none(comm, lambda: self._sorted(owned))
        facts = [
            (key, saved_range.steps, (*saved_range.sums,))
            for key, saved_range in self._owned.items()
        ]
        local, in_files = ([row for row in facts if isinstance(row[0][0], t)] for t in (int, str))
        self._have = [*chain.from_iterable(gather_objects(comm, local)), *in_files]
        # a node is numbered by its first rank
        self._nodes = [ranks[0] for ranks in gather_objects(comm, comm.node())]
        rows = self._tensors.values()
        dtypes = (
            self._wide if isinstance(t, Parameter) else np.dtype(str(t.dtype)) for _, t, _ in rows
        )
        self._values = self._plan(
            [((VALUES, dtype),) for dtype in dtypes],
            [key for key, *_ in self._have],
            [place.range() for place, _, is_held in rows if is_held],
        )

    def values_to_model(self) -> None:
        """Copies parameters and buffers into the model. Every rank calls it, before parameters move
        to a store that ranks share."""

        def write(need: Range, name: str, values: np.ndarray) -> None:
            place, tensor, _ = self._tensors[need.tensor]
            assign(tensor, in_shape(values, place.local_shape, memory_axes(tensor)))

        carry_out(self._values, self._comm, self._read, write)

    def load_optimizer_state(self, optimizer: Optimizer, replicas: int) -> None:
        """Copies the optimizer state and the number of updates of each parameter into the
        optimizer; `replicas` is how many there were along dp. Every rank calls it."""
        index = {id(p): j for j, p in enumerate(optimizer.parameters)}
        local = {k: index[id(t)] for k, (_, t, _) in self._tensors.items() if id(t) in index}
        steps = dict[str, int]()
        for (_, held), n, _ in self._have:
            steps[held.tensor] = max(n, steps.get(held.tensor, 0))
        for path, j in local.items():
            optimizer.steps[j] = steps.get(path, 0)
        need = [
            held._replace(tensor=path) for path, j in local.items() for held in optimizer.owned(j)
        ]

        def write(need: Range, name: str, values: np.ndarray) -> None:
            memory = optimizer.memory(name, local[need.tensor], need.lo, need.hi)
            memory[...] = backend.of(memory).asarray(values, memory.dtype)

        saved_names = {name for _, _, names in self._have for name in names}
        shared = [name for name in optimizer.sums if name in saved_names]
        if shared:
            have = [key for key, _, names in self._have if names]
            arrays = tuple((name, self._wide) for name in shared)
            plan = self._plan([arrays] * len(self._tensors), have, need)
            carry_out(plan, self._comm, self._read, write)
        for name in (name for name in optimizer.sums if name not in saved_names):
            self._load_of_replica(name, replicas, optimizer, local, need, write)

    def _load_of_replica(
        self,
        name: str,
        replicas: int,
        optimizer: Optimizer,
        local: Mapping[str, int],
        need: Sequence[Range],
        write: Write,
    ) -> None:
        """Loads a state array that each replica had with other values, from the replicas that
        `ReplicaState.sources` says; nothing if the snapshot has none. Every rank calls it."""
        found, mine = self._replicas_with(name), optimizer.replica_state or ReplicaState()
        if not found:
            return
        sources = mine.sources(name, found, replicas)
        most = max(gather_objects(self._comm, len(sources)))
        tensors = [
            MovedTensor(
                replica_path(p.path, name, k), p.shape, memory_axes(t), ((VALUES, self._wide),)
            )
            for k in found
            for p, t, _ in self._tensors.values()
        ]
        written = set[Range]()

        def added(held: Range, _: str, values: np.ndarray) -> None:
            path = held.tensor.rpartition(f".{name}{REPLICA}")[0]
            held = held._replace(tensor=path)
            if held in written:
                old = optimizer.numbers(name, local[path], held.lo, held.hi)
                values = values + backend.to_host(old)
            written.add(held)
            write(held, name, values)

        for number in [*sources, *[None] * (most - len(sources))]:
            paths = {replica_path(path, name, number or 0): path for path in self._tensors}
            for (_, held), count, _ in self._have:  # skipped steps differ between replicas
                if (j := local.get(paths.get(held.tensor, ""))) is not None:
                    optimizer.steps[j] = count
            needs = [
                held._replace(tensor=replica_path(held.tensor, name, number))
                for held in need
                if number is not None
            ]
            plan = self._plan_of(tensors, [key for key, *_ in self._have], needs)
            carry_out(plan, self._comm, self._read, added)

    def _replicas_with(self, name: str) -> list[int]:
        """The numbers of the replicas of which the snapshot has all of a state array; of others,
        ranks were lost."""
        parts = defaultdict[int, set[Range]](set)
        for (_, held), *_ in self._have:
            path, sign, number = held.tensor.rpartition(f".{name}{REPLICA}")
            if sign:
                parts[int(number)].add(held._replace(tensor=path))
        most = {held.tensor for ranges in parts.values() for held in ranges}
        needed = sum(prod(self._tensors[path][0].shape) for path in most)
        return sorted(k for k, ranges in parts.items() if sum(r.size for r in ranges) >= needed)

    def _read(self, holder: Holder, have: Range, name: str, lo: int, hi: int) -> np.ndarray:
        return self._owned[holder, have].array(name)[lo - have.lo : hi - have.lo]

    def _plan(
        self, arrays: Sequence[Arrays], have: Sequence[Held], own_need: Sequence[Range]
    ) -> MovePlan:
        """Plans the moves of the given arrays of each tensor. Every rank calls it."""
        tensors = [
            MovedTensor(p.path, p.shape, memory_axes(t), moved_arrays, not isinstance(t, Parameter))
            for (p, t, _), moved_arrays in zip(self._tensors.values(), arrays, strict=True)
        ]
        return self._plan_of(tensors, have, own_need)

    def _plan_of(
        self, tensors: Sequence[MovedTensor], have: Sequence[Held], own_need: Sequence[Range]
    ) -> MovePlan:
        ranges = enumerate(gather_objects(self._comm, own_need))
        need = ((rank, needed) for rank, rank_ranges in ranges for needed in rank_ranges)
        return plan_moves(tensors, have, need, self._nodes)

    def _sorted(self, owned: Sequence[SavedRange]) -> dict[Held, SavedRange]:
        """The ranges that this rank has or that are in files, by (holder, range).

        Raises ValueError for one that does not fit the model.
        """
        by_holder = dict[Held, SavedRange]()
        for have in owned:
            if ".replica_values@" in have.path:
                raise ValueError(
                    f"{have.path} is of an older nnmpi: this one saves by how much the values of "
                    "replicas differ; go on with the older one, or start a new run"
                )
            if REPLICA in have.path:
                by_holder.setdefault((holder_of(have, self._comm.rank), have.range), have)
                continue
            if have.path not in self._tensors:
                raise ValueError(f"{have.path} is in the snapshot, but not in this model")
            place, tensor, _ = self._tensors[have.path]
            if have.shape != place.shape or have.axes != memory_axes(tensor):
                raise ValueError(
                    f"{have.path} has shape {have.shape} and memory order {have.axes} in the "
                    f"snapshot, but {place.shape} and {memory_axes(tensor)} in this model"
                )
            by_holder.setdefault((holder_of(have, self._comm.rank), have.range), have)
        return by_holder
