"""Brings a tensor up to date before it is used, if its memory was written to or has moved."""

from functools import partial

from nnmpi.addons.torchlike.memory.joined_memory import follow
from nnmpi.addons.torchlike.memory.places import base_of, places_of
from nnmpi.addons.torchlike.memory.reshaped_copies import CopyStorage, check_copy
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.autograd.ops.shape import add_at
from nnmpi.autograd.recording import (
    AnyTensor,
    Outdated,
    TapeNode,
    recording,
)


def renew(t: AnyTensor) -> None:
    """Updates the history of a tensor whose memory was written to, before it is used: it becomes a
    view of its base, so that gradients flow through the write. Raises an error if that is not
    known."""
    sharing = t.storage.sharing
    if sharing.outdated is Outdated.INPLACE:
        raise ValueError(
            f"a tensor of shape {t.shape} is used after a layer with inplace=True got it: in a "
            "model for a Trainer use what the layer returned, or make the layer with inplace=False"
        )
    if sharing.outdated is Outdated.MOVED:
        follow(t)
        t.renew()  # the memory may have moved more than once
        return
    storage = t.storage.of_all_writes
    is_copied = sharing.outdated is Outdated.COPIED
    if is_copied or isinstance(storage, CopyStorage):
        check_copy(storage, t.shape)
    if is_copied or (t.node and t.node.tick > sharing.renewed):
        return
    record = recording.get()
    if not isinstance(record, bool):
        record.note_older(t)
    base = base_of(t)
    if base is t or not base._requires_grad:
        return
    vjp = partial(_spread, places_of(base, t), base.shape)
    t._requires_grad, t.node = True, TapeNode(t, (base.node or base,), (True,), (vjp,))


def _spread(places: Array, shape: tuple[int, ...], g: Array, out: Array | None) -> Array:
    d = xp_of(g).zeros(shape, g.dtype)
    add_at(d.reshape(-1), places, g)
    return d
