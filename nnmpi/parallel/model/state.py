"""The state of training on this rank: all its arrays, as one list of named ranges.

    fc.weight                      a parameter: the elements that this rank updates, or their
                                   float32 masters
    bn.running_mean                a buffer or a frozen parameter: this rank's part
    fc.weight.momentum_buffer      optimizer state, of the same elements
    fc.weight.step                 the number of updates
    fc.weight.momentum_buffer@2    where replicas have other values: that of replica 2
    loss scale                     of 16-bit training
    noise.rng                      what `state_arrays` of the module `noise` returns

A snapshot is a copy of this list, and a file has its arrays in turn. Nothing else is saved.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from nnmpi.arrays import backend
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter, in_shape, memory_axes, memory_order
from nnmpi.nn.place import Place, StateArray
from nnmpi.nn.state import assign, which_held
from nnmpi.nn.store import FlatStore
from nnmpi.optim import Optimizer
from nnmpi.optim.loss_scale import LOSS_SCALE
from nnmpi.optim.state import split
from nnmpi.parallel.model.parts import ModelPart


class HasState(Protocol):
    """An object with arrays that training changes and that a checkpoint has to contain."""

    def state_arrays(self) -> Iterable[StateArray]:
        """Returns the arrays that training changes and a checkpoint has to contain, as views."""


def value_arrays(
    part: ModelPart, optimizer: Optimizer | None = None, untrained: bool = True
) -> Iterator[StateArray]:
    """Yields the parameters and buffers of `part` as StateArrays, which are views of their values.

    optimizer   of each parameter that it updates, only this rank's ranges are yielded; of others,
                and with None, all that this rank can read alone
    untrained   False: leaves out what the optimizer does not update, which is outdated on a
                parameter server
    """
    index = {id(p): j for j, p in enumerate(optimizer.parameters)} if optimizer else {}
    for place, tensor in held_tensors(part):
        ranges = iter([(0, place.size)])
        if optimizer and id(tensor) in index:
            ranges = optimizer.owned(index[id(tensor)])
        elif not untrained:
            continue
        elif isinstance(tensor, Parameter) and isinstance(tensor.store, FlatStore):
            ranges = iter(tensor.store.readable(tensor.index))
        yield from (_array(place, tensor, lo, hi) for lo, hi in ranges)


def other_state(part: ModelPart, optimizer: Optimizer, *others: HasState) -> Iterator[StateArray]:
    """Yields the state other than parameters and buffers: of optimizer, modules and `others`."""
    yield from optimizer_state(optimizer)
    run = {m for stage in part.stages.values() for m in stage.modules()}
    # a module around layers of several stages is on the ranks of all of them
    yield from (x for m, x in module_state(part.model) if not run.isdisjoint(m.modules()))
    for other in others:
        yield from other.state_arrays()


def module_state(model: Module) -> Iterator[tuple[Module, StateArray]]:
    """Yields (module, array) for each array that `state_arrays` of a module returns, named by the
    path of the module; raises ValueError for two arrays with the same name."""
    names = set[str]()
    for path, m in model.named_modules():
        for x in m.state_arrays():
            yield m, _with_own_name(x.named(f"{path}.{x.name}" if path else x.name), model, names)


def _with_own_name(x: StateArray, model: Module, names: set[str]) -> StateArray:
    """Returns x after adding its name to `names`; raises ValueError if the name is in use."""
    if x.name in names or x.name in whole_tensors(model):
        raise ValueError(f"{x.name}: state_arrays gives it a name that is in use; choose another")
    names.add(x.name)
    return x


def optimizer_state(optimizer: Optimizer) -> Iterator[StateArray]:
    """Yields state arrays of the optimizer, numbered where replicas differ."""
    replica = optimizer.replica_state
    for x in optimizer.state_arrays():
        yield replica.own(x) if replica else x


def whole_tensors(model: Module) -> dict[str, StateArray]:
    """Returns the whole tensors of a model, without data, by their paths. The dtype is a
    placeholder: ranks that have the tensor know it."""
    return {
        place.path: StateArray(
            place, memory_axes(t), 0, 0, "float32", not isinstance(t, Parameter)
        ).as_whole()
        for place, t in model.tensors()
    }


def model_tensors(model: Module) -> tuple[StateArray, ...]:
    """Returns all whole tensors on paper, once each, under their first names."""
    tensors, names = whole_tensors(model), first_names(model).values()
    return tuple(tensors[name] for name in dict.fromkeys(names))


def first_names(model: Module) -> dict[str, str]:
    """Returns the first name of each name's tensor in the state dict: tied weights have several."""
    first = dict[int, str]()
    return {place.path: first.setdefault(id(t), place.path) for place, t in model.tensors()}


def values_and_others(
    arrays: Iterable[StateArray], model: Module
) -> tuple[list[StateArray], list[StateArray]]:
    """Splits state into (parameters and buffers of a model, other arrays); raises ValueError for an
    array of a tensor or module that the model does not have."""
    tensors = {*whole_tensors(model)}
    known = {LOSS_SCALE, *(x.name for _, x in module_state(model))}
    of_model, others = list[StateArray](), list[StateArray]()
    for x in arrays:
        (of_model if x.name in tensors else others).append(x)
        if x.name not in tensors and x.name not in known and split(x.name)[0] not in tensors:
            raise ValueError(f"{x.name} is in the snapshot, but not in this model")
    return of_model, others


def held_tensors(part: ModelPart) -> Iterator[tuple[Place, Any]]:
    """Yields (place, tensor) of this rank's parts, under their first names."""
    tensors, seen = [*part.model.tensors()], set[int]()
    for (place, tensor), is_held in zip(tensors, which_held(tensors, part.held), strict=True):
        if is_held and id(tensor) not in seen:
            seen.add(id(tensor))
            yield place, tensor


def _array(place: Place, tensor: Any, lo: int, hi: int) -> StateArray:
    """Returns elements lo..hi-1 of `tensor`, this rank's part at `place`, as a StateArray."""
    axes = memory_axes(tensor)
    store = tensor.store if isinstance(tensor, Parameter) else None
    dtype = store.updated_dtype if isinstance(store, FlatStore) else tensor.dtype

    def read(a: int, b: int) -> np.ndarray:
        if isinstance(store, FlatStore):
            return backend.to_host(store.elements(tensor.index, a, b))
        row = memory_order(tensor, tensor.array) if store else tensor._array.reshape(-1)
        return backend.to_host(row[a:b])

    def write(values: np.ndarray) -> None:
        assign(tensor, in_shape(values, place.local_shape, axes))

    whole_part = write if (lo, hi) == (0, place.size) else None
    return StateArray(place, axes, lo, hi, str(dtype), store is None, read, whole_part)
