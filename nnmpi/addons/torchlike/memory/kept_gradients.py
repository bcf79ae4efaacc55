"""Gradients of parameters that a program keeps: `p.grad` and tensors or NumPy arrays made from it.

The gradient of a parameter has one place in memory, which the next backward pass overwrites. What a
program keeps must not change then: when the gradient is cleared, kept tensors move to memory of
their own, or the parameter does, if a NumPy array is kept, which cannot move.
"""

from copy import copy
from typing import Any
from weakref import ref

import numpy as np

from nnmpi.arrays.backend import Array, of, to_host
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import GradientStorage, Move, Storage
from nnmpi.nn.parameter import Parameter, in_shape
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.store import FlatStore


class ParameterGradientStorage(GradientStorage):
    """The Storage of the tensor `p.grad`, and of tensors that share its memory.

    memory   the memory of the gradient, or that to which it has been moved
    tensor   a reference to the tensor that `p.grad` has returned
    arrays   references to objects that live as long as NumPy arrays of this memory
    """

    __slots__ = ("__weakref__", "arrays", "memory", "tensor")

    tensor: ref[Tensor]

    def __init__(self, memory: Array) -> None:
        super().__init__()
        self.memory = memory
        self.arrays = list[ref[_Lent]]()

    def without_history(self) -> Storage:
        return self

    def last_write(self) -> int:
        return hash(to_host(self.memory).tobytes())  # a backward pass records no write

    def check_write_to_copy(self) -> None:
        raise RuntimeError(
            f"a write in place to a reshape of the gradient of shape {tuple(self.memory.shape)} "
            "does not reach the gradient, as weights of convolutions are channels-last in memory: "
            "write to p.grad itself, or assign p.grad"
        )

    def to_numpy(self, array: Array) -> np.ndarray:
        self.sharing_record()
        if not of(array).is_host:
            return to_host(array)
        lent = _Lent(array, self)
        self.arrays = [r for r in self.arrays if r() is not None]
        self.arrays.append(ref(lent))
        return np.asarray(lent).view(array.dtype)  # which has no name there if it is bfloat16


class _Lent:
    """The base of an array that a program has got: lives as long as the array and its views."""

    def __init__(self, array: Array, storage: ParameterGradientStorage) -> None:
        self.__array_interface__ = array.__array_interface__
        self._kept = array, storage


def kept_gradient(p: Parameter) -> Tensor:
    """Returns the gradient of p as a tensor, the same one as long as a program keeps it."""
    memory, storage = p.grad_memory, _storage_of(p)
    t: Tensor | None = None if storage is None else storage.tensor()
    if t is None:
        t = Tensor(memory)
        storage = storage or ParameterGradientStorage(memory)
        t.storage, storage.tensor, p.given_grad = storage, ref(t), ref(storage)
    return t


def _storage_of(p: Parameter) -> ParameterGradientStorage | None:
    """Returns the Storage of the gradient of p, or None if no program keeps the gradient."""
    storage: ParameterGradientStorage | None = None if p.given_grad is None else p.given_grad()
    return storage if storage is not None and storage.memory is p.grad_memory else None


def leave_gradient(p: Parameter) -> None:
    """Called before a gradient is cleared: separates what programs keep of it."""
    storage = _storage_of(p) if p.has_grad else None
    p.given_grad = None
    if storage is None:
        return
    if any(r() is not None for r in storage.arrays) and _has_new_memory(p):
        return
    old = storage.memory
    row = old.transpose(p.memory_axes).flatten()
    sharing, new = storage.sharing_record(), Storage()
    new.sharing_record()
    storage.memory = in_shape(row, old.shape, p.memory_axes)
    sharing.mark_moved(Move(p.memory_axes, new, old, storage.memory))


def move(p: Parameter) -> None:
    """Makes tensors kept of the gradient of p follow it; on another device only `p.grad`."""
    storage: ParameterGradientStorage | None = None if p.given_grad is None else p.given_grad()
    if storage is None:
        return
    old, new = storage.memory, ParameterGradientStorage(p.grad_memory)
    new.tensor, p.given_grad = storage.tensor, ref(new)
    if (t := storage.tensor()) is not None:
        t._array, t.storage = new.memory, new
    if (type(old), old.dtype) == (type(new.memory), new.memory.dtype):
        storage.sharing_record().mark_moved(Move(p.memory_axes, new, old, new.memory))


def _has_new_memory(p: Parameter) -> bool:
    """Gives the gradient of p new memory, with the same values, and with it those of all parameters
    in the same flat buffer. Returns False if its store has other uses for the memory."""
    store: Any = p.store
    if type(store) is SingleStore:
        p.move(SingleStore(p._array), 0)
    elif type(store) is FlatStore:
        twin = copy(store)
        twin.flat_grad = store.flat_grad.copy()
        twin.grad_memories = twin.views(twin.flat_grad)
        for i, q in enumerate(store.parameters):
            q.move(twin, i)
    else:
        return False
    return True
