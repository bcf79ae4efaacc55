"""Which channels of a tensor a rank has, and parameters that are a part of a whole tensor."""

from itertools import pairwise
from typing import TypeVar

from nnmpi import backend
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm, comm_self
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.place import whole
from nnmpi.nn.single_store import SingleStore
from nnmpi.parallel.tensor.ops import Bounds


def divided(channels: int, ranks: int, what: str) -> Bounds:
    """Bounds of nearly equal parts; raises ValueError if a rank would have no channel."""
    if channels < ranks:
        some = f"{channels} channel{'s' * (channels != 1)}"
        raise ValueError(
            f"{what}: {some} cannot be divided among {ranks} ranks, of which each needs one: "
            f"use at most {channels} ranks, or a wider layer"
        )
    return bounds(channels, ranks)


def own(bounds: Bounds, comm: Comm) -> tuple[int, int]:
    """This rank's channels: the first, and the one behind the last."""
    return bounds[comm.rank], bounds[comm.rank + 1]


P = TypeVar("P", Parameter, Parameter | None)


def part_of(p: P, axis: int, bounds: Bounds, comm: Comm) -> P:
    """A parameter that is this rank's part of a whole one along an axis; None of None.

    Values that are not drawn yet will be drawn for this part alone; others are copied.
    """
    if p is None:
        return p
    place = p.place
    part = list(whole(place.shape))
    part[axis] = own(bounds, comm)
    place = place._replace(part=tuple(part))
    new = Parameter.drawn(place, p.init, p.layout)
    new.requires_grad = p.requires_grad
    widest = max(stop - start for start, stop in pairwise(bounds))
    new.room = place.size // max(new.shape[axis], 1) * widest
    if p.is_drawn:
        values = p.data[place.slices]
        memory = backend.xp_of(values).array(values.transpose(p.layout), order="C")
        new.move(SingleStore(memory.transpose(inverse(p.layout))), 0)
        new.seed = p.seed
    return new


def copy_of(p: P) -> P:
    """A parameter with the same values, or with those that will be drawn; None of None."""
    return p if p is None else part_of(p, 0, (0, p.place.shape[0]), comm_self())
