"""The collectives of sharded layers: arrays in memory order, and which algorithm sums them."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from nnmpi.backend import Array, xp_of
from nnmpi.comm import Comm, NoRoomError
from nnmpi.nn.parameter import inverse
from nnmpi.parallel.recorder import current_recorder

SHORT = 8192
"""Bytes: up to here latency counts, and all-reduces go by `doubling`."""

Bounds = tuple[int, ...]
"""`bounds[r]` to `bounds[r + 1]` are the channels of rank r."""

CHANNELS_LAST = (0, 2, 3, 1)
"""Memory order of images (N, C, H, W)."""


def all_reduce(array: Array, comm: Comm, order: Sequence[int] | None = None) -> None:
    """Replaces the array by its sum over the ranks.

    `order` is the order of its axes in memory: by default (N, H, W, C) for four axes, else C
    order. An array in that order is summed without a copy. All ranks add in the same order, so
    all have the same bits.

    Short arrays go by `doubling`, others through memory that a node shares, or by `ring` where
    there is none to share. `auto` would time the ways, and sibling groups could choose
    differently: copies of a parameter in two groups would then have different bits.
    """
    row = array.transpose(memory_order(array.ndim) if order is None else order)
    recorder = current_recorder.get()
    began = recorder.now()
    try:
        comm.all_reduce(row, "doubling" if row.nbytes <= SHORT else "shared")
    except NoRoomError:
        comm.all_reduce(row, "ring")
    recorder.add("tensor", began)


def all_gather(part: Array, comm: Comm, bounds: Bounds, axis: int) -> Array:
    """The parts of all ranks side by side along an axis, in the default order of memory."""
    xp = xp_of(part)
    own = xp.moveaxis(part, axis, 0)
    rest = prod(own.shape[1:])
    lengths = [(stop - start) * rest for start, stop in pairwise(bounds)]
    buffer = xp.empty((bounds[-1], *own.shape[1:]), part.dtype)
    buffer[bounds[comm.rank] : bounds[comm.rank + 1]] = own
    recorder = current_recorder.get()
    began = recorder.now()
    comm.all_gather(buffer, parts=lengths)
    recorder.add("tensor", began)
    whole = xp.moveaxis(buffer, 0, axis)
    order = memory_order(whole.ndim)
    return xp.ascontiguousarray(whole.transpose(order)).transpose(inverse(order))


def own_part(array: Array, comm: Comm, bounds: Bounds, axis: int) -> Array:
    """This rank's part of an array along an axis: a view."""
    start, stop = bounds[comm.rank], bounds[comm.rank + 1]
    return array[(slice(None),) * (axis % array.ndim) + (slice(start, stop),)]


def memory_order(ndim: int) -> tuple[int, ...]:
    """The order in which axes lie in memory: channels last for images."""
    return CHANNELS_LAST if ndim == 4 else tuple(range(ndim))
