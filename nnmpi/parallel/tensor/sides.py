"""Sides: how ranks have an activation that is not cut along channels.

                    a rank has      sum(terms)          whole(part)
    Whole           all of it       all-reduce          the part itself
    CutPositions    its positions   reduce-scatter      all-gather

The two methods are transposes of each other as maps between what all ranks hold. With CutPositions
both send half of what an all-reduce sends, and what is between two products is divided by the ranks
(sequence parallelism of Megatron-LM: Korthikanti and others, 2022).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.parallel.tensor.ops import Bounds, all_gather, all_reduce, reduce_scatter

AXIS = 1
"""Of positions, in activations (N, T, C)."""


class Side(Protocol):
    """What an activation is made from, and made whole by."""

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        """What this rank has of the sum of an array of each rank, whose memory it may take.

        `order` is that of its axes in memory, as `all_reduce` takes it.
        """

    def whole(self, part: Array) -> Array:
        """The whole activation, of what each rank has of it."""


class Whole(NamedTuple):
    """Every rank has all of it."""

    comm: Comm

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        all_reduce(terms, self.comm, order)
        return terms

    def whole(self, part: Array) -> Array:
        return part


class CutPositions(NamedTuple):
    """Rank r has positions bounds[r] to bounds[r + 1] - 1."""

    comm: Comm
    bounds: Bounds

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        return reduce_scatter(terms, self.comm, self.bounds, AXIS)

    def whole(self, part: Array) -> Array:
        return all_gather(part, self.comm, self.bounds, AXIS)
