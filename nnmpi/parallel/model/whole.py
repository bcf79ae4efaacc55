"""WholeArrays: puts arrays of which ranks have parts together as whole arrays, one at a time.

All ranks iterate together, and each whole array is put together on rank 0, the writer. Every
element is sent by only one of the ranks that have it:

    rank 0 (writer)   part of a   ◄── receive ──┐      yields a, then b, ...
    rank 1            part of a   ─── send ─────┘      yields nothing
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import is_float, named, types_of
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter, in_shape
from nnmpi.nn.place import StateArray
from nnmpi.nn.store import values_of
from nnmpi.optim import Optimizer
from nnmpi.optim import state as states
from nnmpi.optim.replica_state import (
    DIFFERENCE,
    RESIDUAL,
    ReplicaState,
    of_one,
    sources_of,
    unnumbered,
)
from nnmpi.optim.state import split
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.mover import HeldArray, Mover, Sources, gathered, same_name
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.model.state import (
    first_names,
    held_tensors,
    optimizer_state,
    value_arrays,
    whole_tensors,
)

WRITER = 0
"""The rank on which whole arrays are gathered."""


class WholeArrays:
    """An iterable of whole arrays on the host, in C order, gathered from all ranks to rank 0, the
    writer. Every rank makes it, and iterates to the end.

    arrays          the whole arrays to gather, without data, in order
    have, sources   as in Mover
    source          returns the arrays of this rank and of files, to read; called once an iteration
    digested        the names of the arrays that `sha256` includes

    Raises ValueError, on all ranks, unless the ranges in `have` cover the arrays.
    """

    def __init__(
        self,
        arrays: Iterable[StateArray],
        have: Sequence[HeldArray],
        comm: Comm,
        source: Callable[[], Iterable[StateArray]],
        sources: Sources = same_name,
        digested: Iterable[str] = (),
    ) -> None:
        dtypes = {x.name: x.dtype for _, x in have}
        self.arrays = [_as_masters(x, dtypes, sources) for x in arrays]
        self.digested = frozenset(digested)
        self._have, self._comm, self._source, self._sources = have, comm, source, sources
        on_writer = {(x.name,) for at, x in have if at == WRITER and x.is_whole}
        self._is_local = all((*sources(x.name),) in on_writer for x in self.arrays)
        if not self._is_local:
            self._to_writer = self._mover([WRITER])

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (name, values) of whole arrays on rank 0; every rank iterates."""
        return self._on_writer() if self._is_local else self._arrivals(self._to_writer)

    def on_all_ranks(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (name, values) of each whole array, on every rank."""
        return self._arrivals(self._to_all)

    def sha256(self) -> str:
        """Returns the SHA-256 of all whole parameters, in state dict order; every rank calls it."""
        digest = hashlib.sha256()
        for name, values in self:  # nothing on other ranks, which have to iterate: they send
            if name in self.digested:
                digest.update(values.tobytes())
        return gather_objects(self._comm, digest.hexdigest())[WRITER]

    @property
    def writer_has_all(self) -> bool:
        """True if rank 0 has all elements, so that nothing is sent."""
        return self._is_local or self._comm.size == 1

    @cached_property
    def _to_all(self) -> Mover:
        return self._mover(range(self._comm.size))

    def _mover(self, ranks: Sequence[int]) -> Mover:
        need = [(rank, x) for x in self.arrays for rank in ranks]
        return Mover(self._have, need, [0] * self._comm.size, self._sources)

    def _on_writer(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (name, copy) of each array on rank 0, if it has all elements."""
        if self._comm.rank == WRITER:
            local = {x.name: x for x in self._source()}
            for x in self.arrays:
                (name,) = self._sources(x.name)
                values = in_shape(local[name].elements(), x.place.shape, x.axes)
                yield x.name, np.array(values, named(x.dtype), order="C")

    def _arrivals(self, mover: Mover) -> Iterator[tuple[str, np.ndarray]]:
        for x, flat in mover.arrivals(self._source(), self._comm):
            yield x.name, np.asarray(in_shape(flat, x.place.shape, x.axes), order="C")


def _as_masters(x: StateArray, dtypes: Mapping[str, str], sources: Sources) -> StateArray:
    """Returns x with the dtype in which it is gathered: that of the arrays whose sum it is, or
    float32, that of masters. `dtypes` has those of all ranks."""
    dtype = next((dtypes[name] for name in sources(x.name) if name in dtypes), x.dtype)
    if not x.may_differ and is_float(named(dtype)):
        dtype = types_of(named(dtype)).masters.name
    return x._replace(dtype=dtype)


def whole_model(part: ModelPart, comm: Comm) -> WholeArrays:
    """Returns the whole parameters and buffers of a model, under all names; every rank calls it."""
    arrays, first = whole_tensors(part.model).values(), first_names(part.model)
    have, source = gathered([*value_arrays(part)], comm), partial(value_arrays, part)
    parameters = (name for name, _ in part.model.named_parameters())
    return WholeArrays(arrays, have, comm, source, lambda name: (first[name],), parameters)


def whole_optimizer(optimizer: Optimizer, model: Module, comm: Comm) -> WholeArrays:
    """Returns the whole optimizer state, under the paths of parameters; every rank calls it. Where
    replicas differ, that of the first is taken; residuals of compression are summed."""
    states.check_paths([p.place for p in optimizer.parameters])
    have = gathered([*optimizer_state(optimizer)], comm)
    paths, sources = whole_tensors(model), sources_of((x for _, x in have), 1, 1)
    arrays = state_of_one(paths, (x for _, x in have))
    return WholeArrays(arrays, have, comm, partial(optimizer_state, optimizer), sources)


def state_of_one(paths: Iterable[str], have: Iterable[StateArray]) -> Iterator[StateArray]:
    """Yields the whole state arrays of an optimizer, without data, under their names in a run with
    one replica; a parameter in `paths` without state in `have` is left out."""
    of_paths = dict[str, dict[str, StateArray]]()
    for x in have:
        name, _ = unnumbered(x.name)
        path, state = split(name)
        of_paths.setdefault(path, {}).setdefault(state, x.named(name).as_whole())
    for path in paths:
        arrays = of_paths.get(path, {})
        counts = [arrays.pop(states.STEP)] if states.STEP in arrays else []
        yield from (arrays[name] for name in of_one(arrays))
        yield from counts


def load_state(optimizer: Optimizer, model: Module, state: Mapping[str, Any], comm: Comm) -> None:
    """Copies this rank's part of what `whole_optimizer` gathers into an optimizer. Every rank calls
    it with the whole state; raises ValueError on all ranks if it does not fit on one."""
    entries = [x.place for x in whole_optimizer(optimizer, model, comm).arrays]
    values = all_or_none(comm, lambda: states.checked(state, entries))
    replica = optimizer.replica_state or ReplicaState()
    for x in optimizer.state_arrays():
        _, name = split(x.name)
        # the first replica has the sum of all residuals
        is_zero = name == DIFFERENCE or (name == RESIDUAL and replica.replica)
        x.put(np.zeros(x.size, x.dtype) if is_zero else x.part_of(values[x.name]))


def first_difference(
    part: ModelPart, comm: Comm, buffers: bool | None = None
) -> tuple[str, int] | None:
    """Returns (path, rank): the first tensor that differs from its copy on the lowest other rank
    that has the same part, and that rank; None if there is none.

    `buffers` selects buffers (True), parameters (False) or both (None). Every rank calls it; all
    have the same names and shapes.
    """
    digests = dict[tuple[Any, ...], bytes]()
    for place, tensor in held_tensors(part):
        if buffers in (None, not isinstance(tensor, Parameter)):
            array = values_of(tensor) if isinstance(tensor, Parameter) else tensor._array
            data = np.asarray(backend.to_host(array), order="C").tobytes()
            digests[place.path, place.part] = hashlib.blake2b(data, digest_size=8).digest()
    of_ranks = gather_objects(comm, digests)  # and not values: a few bytes for each tensor
    for key, digest in digests.items():
        first = next(rank for rank, of_rank in enumerate(of_ranks) if key in of_rank)
        if of_ranks[first][key] != digest:
            return key[0], first
    return None
