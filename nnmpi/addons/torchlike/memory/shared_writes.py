"""In-place writes that a backward pass must go through, to memory that several tensors share: as in
PyTorch, all of them have the new values, and gradients flow through the write.

    v = x[1:]           v lies in the memory of x, its base, and keeps it
    v *= w              x gets a node too: that of x with the elements of v replaced by v * w
    u = x.view(-1)      a tensor with an older node, here one made before the write, gets a new node
                        as a view of the base, as soon as it is used (`renewal`)

Where elements lie is computed from strides and addresses. A tensor made by `detach` is a base of
its own: a write to it changes the values of the original tensor, but no gradient flows between
them. A node that needs an old value raises in the backward pass, as after any write.
"""

from collections.abc import Iterable
from functools import partial
from gc import get_referents
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.memory.places import base_of, places_of
from nnmpi.arrays import backend, native
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import is_meta, owner
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.autograd.recording import AnyTensor, Storage, TapeNode


def may_write(t: AnyTensor) -> bool:
    """True if an in-place write can be recorded: not to a view of a leaf with gradient."""
    base = base_of(t)
    return base is t or base.node is not None or not base._requires_grad


def copied(t: AnyTensor) -> AnyTensor:
    """A tensor with the history of t and a copy of its values."""
    t.renew()
    copy = type(t)(t._array.copy(order="K"), t._requires_grad)
    copy.node = t.node
    return copy


def write(t: AnyTensor, y: AnyTensor) -> None:
    """Writes y, of the shape and type of t, into the memory of t in place, and records the write.
    Gradients of t then flow to what y was computed from; the base of a view is recorded as changed
    there."""
    t.storage.of_all_writes.check_write()
    t.check_writable()
    base = base_of(t)
    places = None if base is t else places_of(base, t)
    node, block = y.node, owner(t._array)
    if node is not None and _holds([node.prepare, *node.vjps], block, set()):
        raise RuntimeError(
            f"cannot write in place to a tensor of shape {t.shape}: the gradient needs the old "
            "values of an operand that lies in the same memory; write to, or compute from, a "
            "clone()"
        )
    if is_meta(y._array) and not is_meta(t._array):
        refuse("writing to memory that tensors share")
    t._array[...] = y._array
    t.mark_written()
    storage = t.storage
    sharing = storage.sharing_record()
    sharing.renewed, sharing.outdated = storage.written, None
    t._requires_grad, t.node = y._requires_grad, None
    if node is not None:
        t.node = TapeNode(t, node.parents, node.needs, node.vjps, node.prepare)
    if places is not None and (base._requires_grad or t._requires_grad):
        needs = (base._requires_grad, t._requires_grad)
        parents = (base.node or base.storage, t.node or storage)
        vjps = (partial(_others, places), partial(_elements, places))
        base._requires_grad = True
        needed = [vjp if need else None for vjp, need in zip(vjps, needs, strict=True)]
        base.node = TapeNode(base, parents, needs, needed)


def is_at(t: AnyTensor, index: Any, value: Any) -> bool:
    """True if `value` is the view t[index] itself, so that t[index] = value has nothing to write,
    as after `t[index] += 1` has changed the view in place."""
    if getattr(value, "storage", None) is not t.storage:
        return False
    there, array = t._array[index], value._array
    return (there.shape, there.strides) == (array.shape, array.strides) and (
        backend.address_of(there) == backend.address_of(array)
    )


def keeps_written(node: TapeNode, storage: Storage) -> bool:
    """True if the backward pass of a node may read what the last write to the storage overwrote."""
    sharing = storage.sharing
    if sharing is None or sharing.time != storage.written:
        return True
    block = sharing.block()
    return block is not None and _holds([node.prepare, *(node.vjps or ())], block, set())


def _holds(things: Iterable[Any], block: Any, seen: set[int]) -> bool:
    """True if any of the objects refers, through closures and containers too, to an array in this
    memory, or cannot be looked into. `seen` collects ids of visited objects."""
    for thing in things:
        module = type(thing).__module__
        if id(thing) in seen or isinstance(thing, PLAIN) or module.startswith(NATIVE):
            continue
        seen.add(id(thing))
        inner: Iterable[Any] = ()
        if backend.is_array(thing):
            if owner(thing) is block:
                return True
        elif isinstance(thing, FunctionType):  # not by get_referents, which has its globals
            inner = [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        elif isinstance(thing, HOLDERS) or module.startswith("nnmpi."):
            inner = get_referents(thing)
        else:
            return True
        if _holds(inner, block, seen):
            return True
    return False


PLAIN: tuple[type, ...] = (
    bool, int, float, str, bytes, slice, type, np.generic, np.dtype, np.ufunc, type(Ellipsis),
    BuiltinFunctionType, ModuleType, backend.Backend, type(None),
)  # fmt: skip
"""Types of values that hold no array."""

NATIVE = native.__name__
"""The module of compiled kernels, which hold no array."""

HOLDERS = (CellType, MethodType, partial, tuple, list, dict, set)
"""Types whose contents `get_referents` lists."""


def _others(places: Array, g: Array, out: Array | None) -> Array:
    d = g.copy().reshape(-1)
    d[places] = 0
    return d.reshape(g.shape)


def _elements(places: Array, g: Array, out: Array | None) -> Array:
    return g.reshape(-1)[places]
