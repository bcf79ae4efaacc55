r"""SequenceCut: where sequences are cut along cp, and which keys the queries of a rank see.

With a causal mask later queries see more keys, so a rank has two stretches: one from the front,
and its mirror from the back (zigzag). T positions on 3 ranks:

    stretch   0   1   2   3   4   5
    rank      0   1   2   2   1   0

    queries of rank 1      keys of rank 0    keys of rank 1    keys of rank 2
                           stretch 0   5     stretch 1   4     stretch 2   3
    stretch 1                      #   .             \   .             .   .
    stretch 4                      #   .             #   \             #   #

    #  all of them      \  those up to the query      .  none

Each rank has as much to compute, in each round of the ring: half of all pairs with another rank.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.step import chunk_start

ALL = slice(None)


class AttendedSlices(NamedTuple):
    """Which of a rank's queries see which of another's keys; causal: those up to their own."""

    queries: slice
    keys: slice
    causal: bool


class SequenceCut(NamedTuple):
    """Sequences of `length` positions on `ranks` ranks.

    axes   the axis of positions of each edge of the graph that has one
    rings  the nodes of attention: those that send keys and values
    """

    ranks: int = 1
    length: int = 0
    axes: Mapping[int, int] = {}
    rings: tuple[int, ...] = ()

    def stretches(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The first position, and the one behind the last, of both stretches of a rank."""
        last = 2 * self.ranks - 1 - rank
        a, b, c, d = (
            chunk_start(self.length, 2 * self.ranks, i) for i in (rank, rank + 1, last, last + 1)
        )
        return (a, b), (c, d)

    def of(self, rank: int) -> np.ndarray:
        """The positions of a rank, which rise."""
        return np.concatenate([np.arange(*ends) for ends in self.stretches(rank)])

    def here(self, rank: int) -> np.ndarray | None:
        """The positions of a rank; None if it has all."""
        return None if self.ranks == 1 else self.of(rank)

    def count(self, rank: int) -> int:
        """How many positions a rank has."""
        return sum(stop - start for start, stop in self.stretches(rank))

    def share(self, numbers: int, rank: int) -> int:
        """How many of these numbers of a whole sequence, as many for each position, a rank has."""
        return numbers * self.count(rank) // self.length if self.length else numbers

    def seen(self, queries: int, keys: int, causal: bool) -> AttendedSlices:
        """The slices of one rank's queries and of another one's keys that attend to each other."""
        if queries == keys or not causal:
            return AttendedSlices(ALL, ALL, causal)
        if keys < queries:
            return AttendedSlices(ALL, slice(0, self._front(keys)), False)
        return AttendedSlices(slice(self._front(queries), None), ALL, False)

    def _front(self, rank: int) -> int:
        """How many positions the first stretch of a rank has."""
        (start, stop), _ = self.stretches(rank)
        return stop - start

    def keys_seen(self, queries: int, keys: int, causal: bool) -> int:
        """How many keys of one rank the queries of another one see, some or all of these."""
        return len(range(self.count(keys))[self.seen(queries, keys, causal).keys])


UNCUT = SequenceCut()
"""Every rank has whole sequences."""
