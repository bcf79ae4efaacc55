"""Writes that are part of a graph, to memory that several tensors share: as in PyTorch, all of them
have the new values, and gradients flow through the write.

    v = x[1:]           v lies in the memory of x, its base
    v *= w              x gets a node too: that of x with the elements of v replaced by v * w
    u = x.view(-1)      a tensor with an older node, here one made before the write, gets a new node
                        as a view of the base, as soon as it is used

Where elements lie is computed from strides and addresses, so no record of views is needed. A node
that needs an old value raises in the backward pass, as after any write.
"""

from collections.abc import Iterable
from functools import partial
from gc import get_referents
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np

from nnmpi.addons import loaded
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.meta.shapes import owner
from nnmpi.autograd.ops.shape import add_at
from nnmpi.autograd.recording import (
    HAS_INPLACE,
    HAS_MOVED,
    AnyTensor,
    Sharing,
    Storage,
    TapeNode,
    recording,
)


class DetachedStorage(Storage):
    """The storage of `t.detach()`: writes are noticed as those to t, but no history follows."""

    __slots__ = ("root",)

    root: Storage

    def __init__(self, storage: Storage) -> None:
        self.root = storage.root

    @property
    def sharing(self) -> Sharing | None:  # type: ignore[override]
        return self.root.sharing

    @property
    def written(self) -> int:
        return self.root.written

    @written.setter
    def written(self, time: int) -> None:
        self.root.written = time

    def lend(self) -> Sharing:
        return self.root.lend()

    def mark_written(self) -> None:
        self.root.mark_written()


def may_write(t: AnyTensor) -> bool:
    """True unless t lies in the memory of a leaf that requires a gradient."""
    return not any(b.requires_grad and b.node is None for b in _bases(t) if b is not t)


def copied(t: AnyTensor) -> AnyTensor:
    """A tensor with the history of t and a copy of its values."""
    copy = type(t)(t.operand.copy(order="K"), t.requires_grad)
    copy.node = t.node
    return copy


def write(t: AnyTensor, y: AnyTensor) -> None:
    """Writes the result y, which has the shape and type of t, into the memory of t, and gives t its
    history, and that of the base of t the write."""
    base, places = _base_of(t)
    node, block = y.node, owner(t.operand)
    if node is not None and _holds([node.prepare, *node.vjps], block, set()):
        raise RuntimeError(
            f"cannot write in place to a tensor of shape {t.shape}: the gradient needs the old "
            "values of an operand that lies in the same memory; write to, or compute from, a "
            "clone()"
        )
    t.operand[...] = y.operand
    t.mark_written()
    storage = t.storage
    sharing = storage.lend()
    sharing.renewed = storage.written
    t.requires_grad, t.node = y.requires_grad, None
    if node is not None:
        t.node = TapeNode(t, node.parents, node.needs, node.vjps, node.prepare)
    if base is None:
        sharing.bases = tuple(map(ref, [*_bases(t), t]))
    elif base is not t and (base.requires_grad or t.requires_grad):
        needs = (base.requires_grad, t.requires_grad)
        parents = (base.node or base.storage, t.node or storage)
        vjps = (partial(_others, places), partial(_elements, places))
        base.requires_grad = True
        needed = [vjp if need else None for vjp, need in zip(vjps, needs, strict=True)]
        base.node = TapeNode(base, parents, needs, needed)


def renew(t: AnyTensor) -> None:
    """Gives a tensor that is about to be used, and whose memory was written to since, the history
    of a view of its base; raises RuntimeError if that is not known."""
    renewed = t.storage.sharing.renewed
    if renewed == HAS_INPLACE:
        raise ValueError(
            f"a tensor of shape {t.shape} is used after a layer with inplace=True got it: in a "
            "model for a Trainer use what the layer returned, or make the layer with inplace=False"
        )
    if renewed == HAS_MOVED:
        loaded("nnmpi.nn.joined_memory:follow")(t)
        return
    if isinstance(t.storage, DetachedStorage) or (t.node and t.node.tick > renewed):
        return
    record = recording.get()
    if not isinstance(record, bool):
        record.note_older(t)
    base, places = _base_of(t)
    if base is t or base is None:
        return
    t.requires_grad, t.node = base.requires_grad, None
    if base.requires_grad:
        vjp = partial(_spread, places, base.shape)
        t.node = TapeNode(t, (base.node,), (True,), (vjp,))


def keeps_written(node: TapeNode, storage: Storage) -> bool:
    """True if the backward pass of a node may read values that the last write to this storage
    replaced."""
    sharing = storage.sharing
    if sharing is None or sharing.time != storage.written:
        return True
    return _holds([node.prepare, *(node.vjps or ())], sharing.block, set())


def _holds(things: Iterable[Any], block: Any, seen: set[int]) -> bool:
    """True if closures, containers and objects hold an array in a block of memory, or a thing that
    cannot be looked into."""
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

NATIVE = "nnmpi.arrays.native"
"""The module of compiled kernels, which hold no array."""

HOLDERS = (CellType, MethodType, partial, tuple, list, dict, set)
"""Types whose contents `get_referents` lists."""


# ---- bases, and where in them elements lie


def _bases(t: AnyTensor) -> list[Any]:
    """The tensors left in whose memory those of this storage lie."""
    sharing = t.storage.sharing
    found = [] if sharing is None else [reference() for reference in sharing.bases]
    return [base for base in found if base is not None]


def _base_of(t: AnyTensor) -> tuple[AnyTensor, Any]:
    """The base in whose memory t lies, None if there is none, and the C-order index in it of each
    element of t; raises RuntimeError if t lies in part of it only."""
    for base in _bases(t):
        if base is t:
            return t, None
        places = _places(base.operand, t.operand)
        if places is not None:
            return base, places
        if np.intersect1d(_addresses(base.operand), _addresses(t.operand)).size:
            raise RuntimeError(
                f"a tensor of shape {t.shape} and one of shape {base.shape} have elements in "
                "common, and one of them was written in place: keep a name for the tensor of which "
                "both are views, or write to a clone()"
            )
    return None, None


def _start(array: Array) -> int:
    """The address of the first element."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


def _addresses(array: Array) -> np.ndarray:
    """The address of each element."""
    found = np.full(array.shape, _start(array))
    for k, (n, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        found += (np.arange(n) * stride).reshape([-1 if i == k else 1 for i in range(array.ndim)])
    return found


def _places(base: Array, view: Array) -> Any:
    """The C-order index in `base` of each element of `view`, or None if not all lie there."""
    rest, found = _addresses(view) - _start(base), np.zeros(view.shape, np.int64)
    c_order = np.cumprod([1, *base.shape[:0:-1]])[::-1] if base.ndim else ()
    axes = [axis for axis in zip(base.strides, base.shape, c_order, strict=True) if axis[1] > 1]
    for stride, n, width in sorted(axes, reverse=True):
        if stride <= 0:
            return None
        along, rest = np.divmod(rest, stride)
        if ((along < 0) | (along >= n)).any():
            return None
        found += along * width
    return None if rest.any() else xp_of(base).asarray(found)


def is_at(t: AnyTensor, index: Any, value: Any) -> bool:
    """True if `value` is a view of t at this index, as the second half of `t[index] += 1` writes
    it."""
    if getattr(value, "storage", None) is not t.storage:
        return False
    there, array = t.operand[index], value.operand
    return (there.shape, there.strides) == (array.shape, array.strides) and (
        _start(there) == _start(array)
    )


# ---- vjps


def _others(places: Array, g: Array, out: Array | None) -> Array:
    d = g.copy()
    d.reshape(-1)[places] = 0
    return d


def _elements(places: Array, g: Array, out: Array | None) -> Array:
    return g.reshape(-1)[places]


def _spread(places: Array, shape: tuple[int, ...], g: Array, out: Array | None) -> Array:
    d = xp_of(g).zeros(shape, g.dtype)
    add_at(d.reshape(-1), places, g)
    return d
