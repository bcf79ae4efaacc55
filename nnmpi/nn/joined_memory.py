"""Lets a parameter share the memory of a tensor: `nn.Parameter(z)` and `p.data = z`, as in PyTorch.

An optimizer moves parameters into one buffer. Tensors that shared the memory of a parameter are
moved to its new memory as soon as they are used (`follow`).
"""

import gc
from typing import Any
from weakref import ref

from nnmpi.arrays.backend import Array, address_of, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import HAS_MOVED, Storage
from nnmpi.autograd.shared_writes import CopyStorage, DetachedStorage
from nnmpi.nn.parameter import DataStorage, Parameter, ParameterData
from nnmpi.nn.place import Place
from nnmpi.nn.single_store import SingleStore


def made(p: Parameter, z: Tensor, requires_grad: bool) -> bool:
    """Initializes p as a new parameter with the shape of the tensor z, and makes it use the memory
    of z, as nn.Parameter(z) does in PyTorch. Returns False if it cannot use this memory, for
    instance because z is not floating-point: then the caller copies the values."""
    if not is_float(z.dtype):
        return False
    p._declare(Place.of_whole("", z.shape), None, None)
    p.needs_grad = requires_grad
    return joins(p, z)


def joins(p: Parameter, z: Any) -> bool:
    """Makes a parameter use the memory of the tensor z if that is possible; returns True if it was
    done.

    It is possible if z has the shape, the type and the order of axes in memory of p, and is not the
    result of an op that needs a gradient, and if no optimizer has moved p or z into its buffer.
    """
    source = z.parameter if isinstance(z, ParameterData) else z
    stores = [q.store for q in (p, source) if isinstance(q, Parameter) and q.store is not None]
    if source is p or p.has_grad or not all(type(store) is SingleStore for store in stores):
        return False
    array, is_copy = z.operand, isinstance(z.storage.root, CopyStorage)
    in_order = array.transpose(p.memory_axes).flags.c_contiguous
    if z.node is not None or is_copy or not in_order or tuple(array.shape) != p.shape:
        return False
    p.move(SingleStore(array), 0)
    p.storage = source.storage.root
    sharing = p.storage.lend()
    owners = sharing.owners or ((ref(source),) if isinstance(source, Parameter) else ())
    sharing.owners = (ref(p), *owners)
    return True


def leave(p: Parameter, old: Array) -> None:
    """Called after a parameter has moved from the memory `old` to new memory: makes each tensor
    that shared `old` with it move to the new memory when it is next used. If the new memory has
    another type or device, these tensors keep the old memory.

    Raises ValueError if another parameter shares the memory `old`.
    """
    new, of_grad = p.operand, None if p.given_grad is None else p.given_grad()
    if of_grad is not None and p.has_grad:
        of_grad.memory = p.grad_memory
        if (given := of_grad.tensor()) is not None:
            given.operand = of_grad.memory
    sharing = p.storage.lend()

    def others() -> list[Any]:
        return [q for r in sharing.owners if (q := r()) is not None and q is not p]

    if others() and gc.collect() is not None and others():
        raise ValueError(
            f"two parameters of shape {p.shape} share their memory, by nn.Parameter(q.data) or "
            "p.data = q.data, and an optimizer cannot update both: assign the parameter itself, as "
            "in a.weight = b.weight, or give one of them a clone()"
        )
    p.storage = Storage()
    if (type(old), old.dtype) != (type(new), new.dtype):
        return
    p.storage.lend()
    sharing.home, sharing.renewed = (p.memory_axes, p.storage, old, new), HAS_MOVED


def follow(t: Tensor) -> None:
    """Moves a tensor to the new memory of the parameter with which it shares memory; raises
    RuntimeError if the order of axes in memory or the type is different there."""
    if isinstance(t, ParameterData):  # which reads the parameter
        t.storage = DataStorage(t.parameter)
        return
    memory_axes, storage, old, new = t.storage.lend().home
    start = address_of(t.operand) - address_of(old)
    if (old.dtype, old.strides) != (new.dtype, new.strides) or start % old.itemsize:
        raise RuntimeError(
            f"a tensor of shape {t.shape} shared the memory of a parameter, which an optimizer has "
            "moved: make the tensor from the parameter again, or as a clone() from the beginning"
        )
    row = new.transpose(memory_axes).reshape(-1)[start // old.itemsize :]
    t.operand = xp_of(new).lib.stride_tricks.as_strided(row, t.operand.shape, t.operand.strides)
    if (viewed := t.viewed) is not None:
        viewed.renew()
        if viewed.storage.root is storage:
            t.storage = viewed.storage
            return
    t.storage = DetachedStorage(storage)
