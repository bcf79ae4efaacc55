"""In-place writes that a backward pass must go through, to memory that several tensors share: as in
PyTorch, all of them have the new values, and gradients flow through the write.

    v = x[1:]           v lies in the memory of x, its base, and keeps it
    v *= w              x gets a node too: that of x with the elements of v replaced by v * w
    u = x.view(-1)      a tensor with an older node, here one made before the write, gets a new node
                        as a view of the base, as soon as it is used

Where elements lie is computed from strides and addresses. A tensor made by `detach` is a base of
its own: a write to it changes the values of the original tensor, but no gradient flows between
them. A node that needs an old value raises in the backward pass, as after any write.
"""

from collections.abc import Callable, Iterable
from functools import partial
from gc import get_referents
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np

from nnmpi.addons import loaded
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.meta import is_meta, owner
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.autograd.ops.shape import add_at, reshape
from nnmpi.autograd.recording import (
    HAS_COPY,
    HAS_INPLACE,
    HAS_MOVED,
    AnyTensor,
    Sharing,
    Storage,
    TapeNode,
    recording,
)


class DetachedStorage(Storage):
    """The Storage of `t.detach()`: writes count as writes to t, gradients do not flow."""

    __slots__ = ("root",)

    root: Storage

    def __init__(self, storage: Storage) -> None:
        self.root = storage.root

    @property
    def sharing(self) -> Sharing | None:  # type: ignore[override]
        return self.root.sharing

    @property
    def of_all_writes(self) -> Storage:
        return self.root.of_all_writes

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


class CopyStorage(Storage):
    """The Storage of a reshaped tensor that shares memory with the original in PyTorch but not
    here, or perhaps the other way round: elements of the original lie in another order.

    Both can be used until one of them is written to. From then on the other one has values that it
    may not have in PyTorch, and its next use raises RuntimeError.

    originals  pairs: the Storage of the original tensor, and of those of which that one is a copy;
               and its `last_write` when the copy was made or last written to
    block      a weak reference to the array in which both lie; `_no_block` if the copy lies apart
    is_once    False if the copy has an element several times, so that a write makes it differ from
               PyTorch's view
    """

    __slots__ = ("block", "is_once", "originals")
    originals: list[tuple[Storage, int]]

    def __init__(self, original: Storage, block: Callable[[], Any]) -> None:
        super().__init__()
        self.lend().renewed = HAS_COPY
        storages = [original]
        if isinstance(original, CopyStorage):
            storages += [storage for storage, _ in original.originals]
        for storage in storages:
            storage.lend()  # a tensor keeps a Storage that is lent
        self.originals, self.block = [(s, s.last_write()) for s in storages], block
        self.is_once = True

    @property
    def is_current(self) -> bool:
        """True if no original has been written to since the copy was made."""
        for k, (storage, seen) in enumerate(self.originals):
            while (home := storage.lend().home) is not None:  # an optimizer has moved it, or such
                is_gradient = home[1].keeps_memory
                if not is_gradient and storage.last_write() != seen:
                    return False
                storage, seen = home[1], seen if is_gradient else 0
                self.originals[k] = storage, seen
            if storage.last_write() != seen:
                return False
        return True

    def mark_written(self) -> None:
        super().mark_written()
        for storage, _ in self.originals:
            sharing = storage.lend()
            is_known = not storage.written or sharing.block is _no_block
            Storage.mark_written(storage)
            # a write that lies apart changes nothing that a node of the original keeps
            if is_known or self.block is not _no_block:
                sharing.time, sharing.block = storage.written, self.block
        self._mark_copied()

    def check_write(self) -> None:
        for storage, _ in self.originals:
            storage.check_write_to_copy()

    def mark_unnoticed(self) -> None:
        super().mark_unnoticed()
        for storage, _ in self.originals:
            Storage.mark_unnoticed(storage)
        self._mark_copied()

    def _mark_copied(self) -> None:
        """Makes the next use of an original, after a write to this copy, raise an error."""
        for storage, _ in self.originals:
            storage.lend().renewed = HAS_COPY
        if self.is_once:
            self.originals = [(storage, storage.last_write()) for storage, _ in self.originals]


def _no_block() -> None:
    """The `Sharing.block` of a tensor of which only copies that lie apart were written to."""


def note_reshaped(t: AnyTensor, y: AnyTensor) -> None:
    """Gives y, the result of a reshape of tensor t, its Storage: that of t if PyTorch has a view
    there, a new one if PyTorch has a copy, and a CopyStorage if that is not known."""
    base = _base_of(t)
    is_shared = not y.operand.size or owner(y.operand) is owner(t.operand)
    # of a whole result, what is a view here is one in PyTorch, where elements are in C order; if
    # elements of the base are in C order too, strides are PyTorch's
    is_c_order = base.operand.flags.c_contiguous
    if is_shared and (is_c_order or base is t):
        return
    if is_c_order:
        _set_storage(y, Storage())
    else:
        block = ref(owner(y.operand)) if is_shared else _no_block
        _set_storage(y, CopyStorage(t.storage.of_all_writes, block))


def note_copy(t: AnyTensor, y: AnyTensor, is_once: bool) -> None:
    """Gives y, a copy of elements of tensor t where PyTorch has a view, a CopyStorage. `is_once` is
    False if the copy has an element of t several times: then a write to y makes its next use
    raise."""
    storage = CopyStorage(t.storage.of_all_writes, _no_block)
    storage.is_once = is_once
    _set_storage(y, storage)


def contiguous(t: AnyTensor) -> AnyTensor:
    """Returns `t.contiguous()`, for a tensor t that is a view or of which there are views."""
    if not t.operand.flags.c_contiguous:
        y = t.clone()
    elif t.viewed is None or _base_of(t).operand.flags.c_contiguous:
        return t
    else:
        y = t.applied(reshape, t, shape=t.shape)
    note_reshaped(t, y)
    return y


def _set_storage(y: AnyTensor, storage: Storage) -> None:
    y.viewed, y.storage = None, storage
    if y.node is not None:
        y.node.storage = storage


def may_write(t: AnyTensor) -> bool:
    """True if an in-place write can be recorded: not to a view of a leaf with gradient."""
    base = _base_of(t)
    return base is t or base.node is not None or not base.needs_grad


def copied(t: AnyTensor) -> AnyTensor:
    """A tensor with the history of t and a copy of its values."""
    t.renew()
    copy = type(t)(t.operand.copy(order="K"), t.needs_grad)
    copy.node = t.node
    return copy


def write(t: AnyTensor, y: AnyTensor) -> None:
    """Writes y into the memory of tensor t in place, and records the write for the backward pass.

    Afterwards gradients of t flow to what y was computed from. If t is a view, the tensor that it
    views is recorded as changed at the elements of t. y has the shape and type of t.
    """
    t.storage.of_all_writes.check_write()
    t.check_writable()
    base = _base_of(t)
    places = None if base is t else _places_of(base, t)
    node, block = y.node, owner(t.operand)
    if node is not None and _holds([node.prepare, *node.vjps], block, set()):
        raise RuntimeError(
            f"cannot write in place to a tensor of shape {t.shape}: the gradient needs the old "
            "values of an operand that lies in the same memory; write to, or compute from, a "
            "clone()"
        )
    if is_meta(y.operand) and not is_meta(t.operand):
        refuse("writing to memory that tensors share")
    t.operand[...] = y.operand
    t.mark_written()
    storage = t.storage
    sharing = storage.lend()
    sharing.renewed = storage.written
    t.needs_grad, t.node = y.needs_grad, None
    if node is not None:
        t.node = TapeNode(t, node.parents, node.needs, node.vjps, node.prepare)
    if places is not None and (base.needs_grad or t.needs_grad):
        needs = (base.needs_grad, t.needs_grad)
        parents = (base.node or base.storage, t.node or storage)
        vjps = (partial(_others, places), partial(_elements, places))
        base.needs_grad = True
        needed = [vjp if need else None for vjp, need in zip(vjps, needs, strict=True)]
        base.node = TapeNode(base, parents, needs, needed)


def renew(t: AnyTensor) -> None:
    """Updates the recorded history of a tensor before it is used, if its memory was written to
    meanwhile.

    The tensor becomes a view of its base, so that gradients flow through the write. Raises an error
    if the new history is not known.
    """
    renewed = t.storage.sharing.renewed
    if renewed == HAS_INPLACE:
        raise ValueError(
            f"a tensor of shape {t.shape} is used after a layer with inplace=True got it: in a "
            "model for a Trainer use what the layer returned, or make the layer with inplace=False"
        )
    if renewed == HAS_MOVED:
        loaded("nnmpi.nn.joined_memory:follow")(t)
        t.renew()  # the memory may have moved more than once
        return
    storage = t.storage.of_all_writes
    if renewed == HAS_COPY or isinstance(storage, CopyStorage):
        _check_copy(storage, t.shape)
    if renewed == HAS_COPY:
        return
    if t.node and t.node.tick > renewed:
        return
    record = recording.get()
    if not isinstance(record, bool):
        record.note_older(t)
    base = _base_of(t)
    if base is t or not base.needs_grad:
        return
    vjp = partial(_spread, _places_of(base, t), base.shape)
    t.needs_grad, t.node = True, TapeNode(t, (base.node or base,), (True,), (vjp,))


def _check_copy(storage: Storage, shape: tuple[int, ...]) -> None:
    """Raises RuntimeError if a reshaped copy, or the original of one, has been written to."""
    if not (isinstance(storage, CopyStorage) and storage.is_current):
        raise RuntimeError(
            f"a tensor of shape {tuple(shape)} is used after a write in place to another one that "
            "may share its elements in PyTorch: its reshape, view or unfold, or that of which it "
            "is one; here it may not, as images are channels-last in memory. Reshape after the "
            "write, or write to a clone()"
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

NATIVE = "nnmpi.arrays.native"
"""The module of compiled kernels, which hold no array."""

HOLDERS = (CellType, MethodType, partial, tuple, list, dict, set)
"""Types whose contents `get_referents` lists."""


# ---- bases, and where in them elements lie


def _base_of(t: AnyTensor) -> AnyTensor:
    """The tensor of which t is a view, through other views too; t itself if it is none."""
    block = owner(t.operand)
    while (viewed := t.viewed) is not None and viewed.storage is t.storage:
        if owner(viewed.operand) is not block:
            break
        t = viewed
    return t


def _places_of(base: AnyTensor, view: AnyTensor) -> Any:
    """Returns the C-order index, in the tensor `base`, of each element of `view`, a view of it."""
    places = _places(base.operand, view.operand)
    if places is None:
        raise RuntimeError(
            f"cannot tell where in a tensor of shape {base.shape} lies its view of shape "
            f"{view.shape}, as its array has elements in common with itself: make it by clone()"
        )
    return places


def _addresses(array: Array) -> np.ndarray:
    """The address of each element."""
    found = np.full(array.shape, backend.address_of(array))
    for k, (n, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        found += (np.arange(n) * stride).reshape([-1 if i == k else 1 for i in range(array.ndim)])
    return found


def _places(base: Array, view: Array) -> Any:
    """The C-order index in the array `base` of each element of `view`, which lies in its memory;
    None if strides do not tell it, for instance because elements of `base` overlap."""
    rest, found = _addresses(view) - backend.address_of(base), np.zeros(view.shape, np.int64)
    c_order = np.cumprod([1, *base.shape[:0:-1]])[::-1] if base.ndim else ()
    axes = [axis for axis in zip(base.strides, base.shape, c_order, strict=True) if axis[1] > 1]
    axes.sort(key=lambda axis: abs(axis[0]))
    end = 0  # of the elements along the axes so far
    for stride, n, _ in axes:
        if abs(stride) <= end:
            return None
        end += abs(stride) * (n - 1)
        rest -= min(stride, 0) * (n - 1)  # from the lowest address on
    for stride, n, width in reversed(axes):
        along, rest = np.divmod(rest, abs(stride))
        if ((along < 0) | (along >= n)).any():
            return None
        found += (along if stride > 0 else n - 1 - along) * width
    return None if rest.any() else xp_of(base).asarray(found)


def is_at(t: AnyTensor, index: Any, value: Any) -> bool:
    """True if `value` is the view t[index] itself, so that the assignment t[index] = value has
    nothing to write. Python makes such an assignment in `t[index] += 1`, after it has changed the
    view in place."""
    if getattr(value, "storage", None) is not t.storage:
        return False
    there, array = t.operand[index], value.operand
    return (there.shape, there.strides) == (array.shape, array.strides) and (
        backend.address_of(there) == backend.address_of(array)
    )


# ---- vjps


def _others(places: Array, g: Array, out: Array | None) -> Array:
    d = g.copy().reshape(-1)
    d[places] = 0
    return d.reshape(g.shape)


def _elements(places: Array, g: Array, out: Array | None) -> Array:
    return g.reshape(-1)[places]


def _spread(places: Array, shape: tuple[int, ...], g: Array, out: Array | None) -> Array:
    d = xp_of(g).zeros(shape, g.dtype)
    add_at(d.reshape(-1), places, g)
    return d
