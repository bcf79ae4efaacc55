"""Sides: how ranks have an activation that is not cut along channels.

                    a rank has      sum(terms)          whole(part)
    Whole           all of it       all-reduce          the part itself
    CutAlong        some positions, reduce-scatter      all-gather
                    some samples

The two methods are transposes of each other as maps between what all ranks hold. With CutAlong both
send half of what an all-reduce sends, and what is between two products is divided by the ranks:
along positions in sequence parallelism (Megatron-LM: Korthikanti and others, 2022), along samples
between convolutions that are data-parallel and products that are not (Krizhevsky, 2014).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from nnmpi.arrays.backend import Array
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.parallel.tensor.ops import Bounds, all_gather, all_reduce, reduce_scatter
from nnmpi.parallel.tensor.sample_cut import sample_bounds


class Side(Protocol):
    """What an activation is made from, and made whole by."""

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        """What this rank has of the sum of an array of each rank, whose memory it may take.

        `order` is that of its axes in memory, as `all_reduce` takes it.
        """

    def whole(self, part: Array) -> Array:
        """The whole activation, of what each rank has of it."""


class SideOfCall(Protocol):
    """What has a side in each call of a layer."""

    def of(self, x: Any, is_part: bool = False) -> Side:
        """The side in a call with x, which has all samples, or those of this rank."""


class Whole(NamedTuple):
    """Every rank has all of it."""

    comm: Comm

    def of(self, x: Any, is_part: bool = False) -> Side:
        return self

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        all_reduce(terms, self.comm, order)
        return terms

    def whole(self, part: Array) -> Array:
        return part


class CutAlong(NamedTuple):
    """Rank r has bounds[r] to bounds[r + 1] - 1 along an axis; 1 is that of positions."""

    comm: Comm
    bounds: Bounds
    axis: int = 1

    def of(self, x: Any, is_part: bool = False) -> Side:
        return self

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        return reduce_scatter(terms, self.comm, self.bounds, self.axis)

    def whole(self, part: Array) -> Array:
        return all_gather(part, self.comm, self.bounds, self.axis)


class CutSamples(NamedTuple):
    """Each rank has some samples of a micro-batch, whose number each call tells."""

    comm: Comm

    def of(self, x: Any, is_part: bool = False) -> Side:
        known = sample_bounds(x, self.comm) if is_part else bounds(len(x), self.comm.size)
        return CutAlong(self.comm, known, 0)
