"""Lets a parameter share the memory of a tensor: `nn.Parameter(z)` and `p.data = z`, as in PyTorch.

An optimizer moves parameters into one buffer. Tensors that shared the memory of a parameter are
moved to its new memory as soon as they are used (`follow`). After `p.data = value` they keep the
old values.
"""

import gc
from typing import Any, NoReturn
from weakref import ref

from nnmpi.addons.torchlike.memory.kept_gradients import move
from nnmpi.addons.torchlike.memory.reshaped_copies import CopyStorage
from nnmpi.arrays.backend import Array, address_of, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import DetachedStorage, Move, Sharing, Storage
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.parameter_data import DataStorage, ParameterData
from nnmpi.nn.place import Place
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.store import FlatStore


def made(p: Parameter, z: Tensor, requires_grad: bool) -> bool:
    """Initializes p as a new parameter with the shape of the tensor z, and makes it use the memory
    of z, as nn.Parameter(z) does in PyTorch. Returns False if it cannot use this memory, for
    instance because z is not floating-point: then the caller copies the values."""
    if not is_float(z.dtype):
        return False
    p._declare(Place.of_whole("", z.shape), None, None)
    p._requires_grad = requires_grad
    return joins(p, z)


def assign_data(p: Parameter, value: Any) -> None:
    """Does `p.data = value`: p uses the memory of the tensor `value`; or that tensor moves to the
    memory of p, if this is part of an optimizer's buffer; or p gets a copy of its values. Tensors
    that share the old memory of p keep the old values."""
    if isinstance(value, Tensor):
        value.renew()
    array, old, storage = p._fitting("data", value), p._array, p.storage
    if array is old:  # after `p.data *= 2`
        p.values_written()
        return
    sharing, kept = storage.sharing, old
    is_alike = isinstance(value, Tensor) and value.dtype == p.dtype
    if is_alike and joins(p, value):
        p.values_written()
    else:
        if is_alike and isinstance(getattr(value, "parameter", value), Parameter):
            _refuse_shared(p)
        if sharing is not None:
            p.storage = Storage()
            if type(p.store) is SingleStore and not p.has_grad:  # arrays keep the old values too
                p.move(SingleStore(xp_of(old).empty_like(old)), 0)
            else:
                kept = old.copy(order="K")
        p.array = array
        p.storage.mark_written()  # a graph may need the old values
        if is_alike and type(value) is Tensor and type(p.store) is FlatStore and _fits(p, value):
            p.storage.sharing_record()
            left = value.storage.of_all_writes.sharing_record()
            left.mark_moved(Move(p.memory_axes, p.storage, array, p._array))
    if sharing is not None and p.storage is not storage and not _others(p, sharing):
        other = Storage()
        other.sharing_record()
        sharing.mark_moved(Move(p.memory_axes, other, old, kept))


def joins(p: Parameter, z: Any) -> bool:
    """Makes a parameter use the memory of the tensor z; returns False if that does not fit
    (`_fits`), or if an optimizer has moved p or z into its buffer."""
    source = z.parameter if isinstance(z, ParameterData) else z
    stores = [q.store for q in (p, source) if isinstance(q, Parameter) and q.store is not None]
    if source is p or p.has_grad or not all(type(store) is SingleStore for store in stores):
        return False
    if not _fits(p, z):
        return False
    p.move(SingleStore(z._array), 0)
    p.storage = source.storage.of_all_writes
    sharing = p.storage.sharing_record()
    owners = sharing.owners or ((ref(source),) if isinstance(source, Parameter) else ())
    sharing.owners = (ref(p), *owners)
    return True


def _fits(p: Parameter, z: Tensor) -> bool:
    """True if the memory of z can be that of p: with its shape, type and order, no result that
    needs a gradient, no copy where PyTorch has a view."""
    array, is_copy = z._array, isinstance(z.storage.of_all_writes, CopyStorage)
    in_order = array.transpose(p.memory_axes).flags.c_contiguous
    return z.node is None and not is_copy and in_order and tuple(array.shape) == p.shape


def leave_values(p: Parameter, old: Array) -> None:
    """Called after a parameter has moved from the memory `old`: tensors that shared it move to the
    new memory when they are next used, or keep the old one if the type or device differs. Raises
    ValueError if another parameter shares the memory `old`."""
    new = p._array
    if p.given_grad is not None and p.has_grad:
        move(p)
    sharing = p.storage.sharing_record()
    if _others(p, sharing) and gc.collect() is not None and _others(p, sharing):
        _refuse_shared(p)
    p.storage = Storage()
    if (type(old), old.dtype) != (type(new), new.dtype):
        return
    p.storage.sharing_record()
    sharing.mark_moved(Move(p.memory_axes, p.storage, old, new))


def _refuse_shared(p: Parameter) -> NoReturn:
    raise ValueError(
        f"two parameters of shape {p.shape} share their memory, by nn.Parameter(q.data) or "
        "p.data = q.data, and an optimizer cannot update both: assign the parameter itself, as "
        "in a.weight = b.weight, or copy the values, by clone() or p.data.copy_(q.data)"
    )


def _others(p: Parameter, sharing: Sharing) -> list[Any]:
    """Returns the other parameters that share the memory of p."""
    return [q for r in sharing.owners if (q := r()) is not None and q is not p]


def follow(t: Tensor) -> None:
    """Moves a tensor to the new memory of the parameter with which it shares memory, or to that of
    the old values after `p.data = value`; raises RuntimeError if the order of axes in memory or the
    type is different there."""
    if isinstance(t, ParameterData):
        _follow_data(t)
        return
    move = t.storage.sharing_record().moved
    assert move is not None
    memory_axes, storage, old, new = move
    start = address_of(t._array) - address_of(old)
    if old.dtype != new.dtype or _strides(old) != _strides(new) or start % old.itemsize:
        raise RuntimeError(
            f"a tensor of shape {t.shape} shared the memory of a parameter, which an optimizer has "
            "moved: make the tensor from the parameter again, or as a clone() from the beginning"
        )
    row = new.transpose(memory_axes).reshape(-1)[start // old.itemsize :]
    t._array = xp_of(new).lib.stride_tricks.as_strided(row, t._array.shape, t._array.strides)
    if (viewed := t.viewed) is not None:
        viewed.renew()
        if viewed.storage.root is storage:
            t.storage = viewed.storage
            return
    t.storage = DetachedStorage(storage)


def _strides(array: Array) -> list[int]:
    """The strides of the axes that are longer than 1."""
    return [stride for stride, n in zip(array.strides, array.shape, strict=True) if n > 1]


def _follow_data(t: ParameterData) -> None:
    """Makes a tensor `p.data` read p where it is now, or the values before it was replaced."""
    sharing = t.storage.sharing_record()
    while sharing.moved is not None:
        _, storage, _, values = sharing.moved
        sharing = storage.sharing_record()
    if isinstance(t.parameter, Parameter) and t.parameter.storage is storage:
        t.storage = DataStorage(t.parameter)
    else:
        t.parameter = Tensor(values)
        t.parameter.storage, t.storage = storage, DetachedStorage(storage)
