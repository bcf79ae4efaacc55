"""Reshaped tensors that share memory with the original in PyTorch but not here, or perhaps the
other way round: elements of the original lie in another order, as images are channels-last."""

from collections.abc import Callable
from typing import Any
from weakref import ref

from nnmpi.addons.torchlike.memory.places import base_of
from nnmpi.arrays.meta import owner
from nnmpi.autograd.ops.shape import reshape
from nnmpi.autograd.recording import AnyTensor, Outdated, Storage


class CopyStorage(Storage):
    """The Storage of a tensor of `reshaped_copies`. Both can be used until one of them is written
    to; from then on the other one has values that it may not have in PyTorch, and its next use
    raises RuntimeError.

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
        self.sharing_record().outdated = Outdated.COPIED
        storages = [original]
        if isinstance(original, CopyStorage):
            storages += [storage for storage, _ in original.originals]
        for storage in storages:
            storage.sharing_record()  # a tensor keeps a Storage that has one
        self.originals, self.block = [(s, s.last_write()) for s in storages], block
        self.is_once = True

    @property
    def is_current(self) -> bool:
        """True if no original has been written to since the copy was made."""
        for k, (storage, seen) in enumerate(self.originals):
            while move := storage.sharing_record().moved:  # an optimizer has moved it, or such
                is_gradient = move.storage.keeps_memory
                if not is_gradient and storage.last_write() != seen:
                    return False
                storage, seen = move.storage, seen if is_gradient else 0
                self.originals[k] = storage, seen
            if storage.last_write() != seen:
                return False
        return True

    def mark_written(self) -> None:
        super().mark_written()
        for storage, _ in self.originals:
            sharing = storage.sharing_record()
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
            storage.sharing_record().outdated = Outdated.COPIED
        if self.is_once:
            self.originals = [(storage, storage.last_write()) for storage, _ in self.originals]


def _no_block() -> None:
    """The `Sharing.block` of a tensor of which only copies that lie apart were written to."""


def note_reshaped(t: AnyTensor, y: AnyTensor) -> None:
    """Gives y, the result of a reshape of tensor t, its Storage: that of t if PyTorch has a view
    there, a new one if PyTorch has a copy, and a CopyStorage if that is not known."""
    base = base_of(t)
    is_shared = not y._array.size or owner(y._array) is owner(t._array)
    # of a whole result, what is a view here is one in PyTorch, where elements are in C order; if
    # elements of the base are in C order too, strides are PyTorch's
    is_c_order = base._array.flags.c_contiguous
    if is_shared and (is_c_order or base is t):
        return
    if is_c_order:
        _set_storage(y, Storage())
    else:
        block = ref(owner(y._array)) if is_shared else _no_block
        _set_storage(y, CopyStorage(t.storage.of_all_writes, block))


def note_copy(t: AnyTensor, y: AnyTensor, is_once: bool) -> None:
    """Gives y, a copy where PyTorch has a view, a CopyStorage. Unless `is_once`, which copies with
    repeated elements are not, the next use of y after a write to it raises."""
    storage = CopyStorage(t.storage.of_all_writes, _no_block)
    storage.is_once = is_once
    _set_storage(y, storage)


def contiguous(t: AnyTensor) -> AnyTensor:
    """Returns `t.contiguous()`, for a tensor t that is a view or of which there are views."""
    if not t._array.flags.c_contiguous:
        y = t.clone()
    elif t.viewed is None or base_of(t)._array.flags.c_contiguous:
        return t
    else:
        y = t.applied(reshape, t, shape=t.shape)
    note_reshaped(t, y)
    return y


def _set_storage(y: AnyTensor, storage: Storage) -> None:
    y.viewed, y.storage = None, storage
    if y.node is not None:
        y.node.storage = storage


def check_copy(storage: Storage, shape: tuple[int, ...]) -> None:
    """Raises RuntimeError if a reshaped copy, or the original of one, has been written to."""
    if not (isinstance(storage, CopyStorage) and storage.is_current):
        raise RuntimeError(
            f"a tensor of shape {tuple(shape)} is used after a write in place to another one that "
            "may share its elements in PyTorch: its reshape, view or unfold, or that of which it "
            "is one; here it may not, as images are channels-last in memory. Reshape after the "
            "write, or write to a clone()"
        )
