"""Collectives on parts of tensors along an axis, and four differentiable ops made of these.

            forward                     backward
copy        x                           all-reduce        x goes into a sharded layer
reduce      all-reduce                  g                 partial sums come out of one
gather      all-gather along an axis    own part          sharded channels become whole
scatter     own part along an axis      all-gather        whole channels become sharded

`copy` and `reduce` are transposes of each other as maps between what all ranks hold, and so are
`gather` and `scatter`. They have no state; on a Comm of one rank each is the identity.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TypeVar

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.autograd import Tensor, apply
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm, comm_self
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.place import whole
from nnmpi.nn.single_store import SingleStore
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.wire import all_reduce_with_room, wire_for

DOUBLING_BYTES = 8192
"""Bytes up to which an all-reduce uses `doubling`, because latency dominates."""

Bounds = tuple[int, ...]
"""Rank r has channels bounds[r] to bounds[r + 1] - 1."""

CHANNELS_LAST = (0, 2, 3, 1)
"""The memory order of images (N, C, H, W)."""


# ---- parts


def even_bounds(channels: int, ranks: int, label: str) -> Bounds:
    """Divides channels nearly equally; raises ValueError, with `label`, if a rank has none."""
    if channels < ranks:
        have = f"{channels} channel{'s' * (channels != 1)}"
        raise ValueError(
            f"{label}: {have} cannot be divided among {ranks} ranks, each of which needs one: "
            f"use at most {channels} ranks, or a wider layer"
        )
    return bounds(channels, ranks)


def span_of(bounds: Bounds, comm: Comm) -> tuple[int, int]:
    """Returns (start, stop) of this rank's channels, as `bounds` divides them."""
    return bounds[comm.rank], bounds[comm.rank + 1]


P = TypeVar("P", Parameter, Parameter | None)


def part_of(p: P, axis: int, bounds: Bounds, comm: Comm) -> P:
    """Returns this rank's part of p along an axis, as a new parameter with copies of its values;
    None if p is None. If p is not initialised yet, only this part of its values will be made."""
    if p is None:
        return p
    place = p.place
    part = list(whole(place.shape))
    part[axis] = span_of(bounds, comm)
    place = place._replace(part=tuple(part))
    new = Parameter.lazy(place, p.init, p.memory_axes)
    new._requires_grad = p._requires_grad
    widest = max(stop - start for start, stop in pairwise(bounds))
    new.padded_size = place.size // max(new.shape[axis], 1) * widest
    if p.is_drawn:
        values = p.array[place.slices]
        memory = xp_of(values).array(values.transpose(p.memory_axes), order="C")
        new.move(SingleStore(memory.transpose(inverse(p.memory_axes))), 0)
        new.seed = p.seed
    return new


def copy_of(p: P) -> P:
    """Returns a new parameter with the values of p; None if p is None. If p is not initialised yet,
    both p and the new parameter will be initialised to the same values."""
    return p if p is None else part_of(p, 0, (0, p.place.shape[0]), comm_self())


# ---- collectives


def all_reduce(array: Array, comm: Comm, order: Sequence[int] | None = None) -> None:
    """Replaces the array by its sum over ranks; all add in one order, so all get the same bits.

    `order` is the order of its axes in memory: by default (N, H, W, C) for four axes, else C order.
    An array in that order is summed without a copy.

    Short arrays use `doubling`, others memory that the node shares, or `ring` where there is none.
    `auto` might choose differently in two groups along tp, and copies of a parameter would get
    different bits.
    """
    row = array.transpose(memory_order(array.ndim) if order is None else order)
    with waiting("tensor"):
        all_reduce_with_room(wire_for(comm, array), row, sum_algorithm(row.nbytes))


def sum_algorithm(nbytes: int) -> str:
    """Returns the name of the all-reduce for so many bytes along tp: `ring` if the node lacks
    memory for another."""
    return "doubling" if nbytes <= DOUBLING_BYTES else "shared"


def all_gather(part: Array, comm: Comm, bounds: Bounds, axis: int) -> Array:
    """Gathers the parts of an array from all ranks, and returns their concatenation along an axis,
    in the default memory order. `bounds` says which indices each rank has."""
    xp = xp_of(part)
    mine = xp.moveaxis(part, axis, 0)
    stride = prod(mine.shape[1:])
    lengths = [(stop - start) * stride for start, stop in pairwise(bounds)]
    buffer = xp.empty((bounds[-1], *mine.shape[1:]), part.dtype)
    buffer[slice(*span_of(bounds, comm))] = mine
    with waiting("tensor"):
        wire_for(comm, buffer).all_gather(buffer, parts=lengths)
    gathered = xp.moveaxis(buffer, 0, axis)
    order = memory_order(gathered.ndim)
    return xp.ascontiguousarray(gathered.transpose(order)).transpose(inverse(order))


def reduce_scatter(array: Array, comm: Comm, bounds: Bounds, axis: int) -> Array:
    """Sums an array over the ranks, and returns this rank's part of the sum along an axis, as a new
    array in C order; the transpose of `all_gather`. The array may be overwritten."""
    xp = xp_of(array)
    buffer = xp.ascontiguousarray(xp.moveaxis(array, axis, 0))
    stride = prod(buffer.shape[1:])
    lengths = [(stop - start) * stride for start, stop in pairwise(bounds)]
    wire = wire_for(comm, buffer)
    row = buffer.reshape(-1)
    with waiting("tensor"):
        wire.start_reduce_scatter(row, "ring", lengths).wait()
    return xp.moveaxis(buffer[slice(*span_of(bounds, comm))], 0, axis).copy(order="C")


def all_to_all(
    parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], comm: Comm, skips: bool = True
) -> list[Array]:
    """Sends parts[r] to each rank r, and returns the arrays that this rank receives: entry r comes
    from rank r and has the shape shapes[r]. With `skips`, no message is sent for an empty array."""
    xp, me, dtype = xp_of(parts[0]), comm.rank, parts[0].dtype
    wire, ahead = wire_for(comm, parts[0]), [(me + s) % comm.size for s in range(1, comm.size)]
    received = [parts[r] if r == me else xp.empty(shape, dtype) for r, shape in enumerate(shapes)]
    with waiting("tensor"):
        # rank me - 1 sends to this rank first, so receives are posted in the order of arrival
        works = [
            wire.irecv(received[r], r) for r in reversed(ahead) if received[r].size or not skips
        ]
        works += [wire.isend(parts[r], r) for r in ahead if parts[r].size or not skips]
        for work in works:
            work.wait()
    return received


def own_part(array: Array, comm: Comm, bounds: Bounds, axis: int) -> Array:
    """Returns a view of this rank's part of an array along an axis."""
    return array[(slice(None),) * (axis % array.ndim) + (slice(*span_of(bounds, comm)),)]


def memory_order(ndim: int) -> tuple[int, ...]:
    """Returns a tensor's default memory order: channels last for images."""
    return CHANNELS_LAST if ndim == 4 else tuple(range(ndim))


# ---- ops of tensors


def copy(x: Tensor, comm: Comm) -> Tensor:
    """Returns x, which is the same on all ranks; in the backward pass, sums its gradient over all
    ranks. It is used before a layer that is divided among ranks."""
    order = x.memory_axes if isinstance(x, Parameter) else memory_order(x.ndim)
    return apply(_copy, x, comm=comm, order=order)


def reduce(x: Tensor, comm: Comm) -> Tensor:
    """Returns the sum of x over ranks; its gradient passes without a message."""
    return apply(_reduce, x, comm=comm)


def gather(x: Tensor, comm: Comm, bounds: Bounds, axis: int = 1) -> Tensor:
    """Concatenates the parts of all ranks along an axis."""
    _check(x, bounds[comm.rank + 1] - bounds[comm.rank], axis, "gather", bounds)
    return apply(_gather, x, comm=comm, bounds=bounds, axis=axis)


def scatter(x: Tensor, comm: Comm, bounds: Bounds, axis: int = 1) -> Tensor:
    """Returns this rank's part, along an axis, of a tensor that all ranks have."""
    _check(x, bounds[-1], axis, "scatter", bounds)
    return apply(_scatter, x, comm=comm, bounds=bounds, axis=axis)


def _check(x: Tensor, size: int, axis: int, name: str, bounds: Bounds) -> None:
    if x.shape[axis] != size:
        raise ValueError(
            f"{name}: input of shape {x.shape}; with bounds {bounds} it must have {size} "
            f"channels along axis {axis} on this rank"
        )


def _copy(x: Array, *, comm: Comm, order: tuple[int, ...]) -> Result:
    def vjp(g: Array, out: Array | None) -> Array:
        total = xp_of(g).empty_like(g) if out is None else out
        total[...] = g
        all_reduce(total, comm, order)
        return total

    return Result(x, (vjp,), is_view=True)


def _reduce(x: Array, *, comm: Comm) -> Result:
    total = x.copy(order="K")
    all_reduce(total, comm)
    return Result(total, (lambda g, out: g,))


def _gather(x: Array, *, comm: Comm, bounds: Bounds, axis: int) -> Result:
    y = all_gather(x, comm, bounds, axis)
    return Result(y, (lambda g, out: own_part(g, comm, bounds, axis),))


def _scatter(x: Array, *, comm: Comm, bounds: Bounds, axis: int) -> Result:
    y = own_part(x, comm, bounds, axis)
    return Result(y, (lambda g, out: all_gather(g, comm, bounds, axis),), is_view=True)
