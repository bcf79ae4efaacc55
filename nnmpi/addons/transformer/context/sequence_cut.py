r"""SequenceCut: how sequences are divided along cp, and which keys the queries of a rank attend to.

With a causal mask later queries see more keys, so a rank has two chunks: one from the front, and
its mirror from the back (zigzag). T positions on 3 ranks:

    chunk     0   1   2   3   4   5
    rank      0   1   2   2   1   0

    queries of rank 1      keys of rank 0    keys of rank 1    keys of rank 2
                           chunk 0     5     chunk 1     4     chunk 2     3
    chunk 1                        #   .             \   .             .   .
    chunk 4                        #   .             #   \             #   #

    #  all of them      \  those up to the query      .  none

Each rank computes equally much in each round of the ring: half of all pairs with another rank.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.step import chunk_start
from nnmpi.parallel.tensor.sharding import Sharding

ALL = slice(None)


class AttendedSlices(NamedTuple):
    """Which queries of one rank and which keys of another attend to each other, as slices of their
    positions. If `causal`, a query attends only to keys at its own position or before."""

    queries: slice
    keys: slice
    causal: bool


class SequenceCut(NamedTuple):
    """How sequences of `length` positions are divided among `ranks` ranks along cp.

    axes   a dict: number of an activation (edge of the graph) -> its axis of positions
    rings  the attention nodes of the graph, which send keys and values between ranks
    """

    ranks: int = 1
    length: int = 0
    axes: Mapping[int, int] = {}
    rings: tuple[int, ...] = ()

    def chunks(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns (start, stop) of the two chunks of positions that a rank has."""
        last = 2 * self.ranks - 1 - rank
        a, b, c, d = (
            chunk_start(self.length, 2 * self.ranks, i) for i in (rank, rank + 1, last, last + 1)
        )
        return (a, b), (c, d)

    def of(self, rank: int) -> np.ndarray:
        """Returns the sequence positions that a rank has, in increasing order."""
        return np.concatenate([np.arange(*ends) for ends in self.chunks(rank)])

    def count(self, rank: int) -> int:
        """Returns the number of sequence positions that a rank has."""
        return sum(stop - start for start, stop in self.chunks(rank))

    def localise(self, e: int, rank: int, shape: list[int]) -> None:
        """Replaces the number of positions in the whole shape of activation `e` by the rank's."""
        if e in self.axes:
            shape[self.axes[e]] = self.count(rank)

    def share(self, numbers: int, rank: int) -> int:
        """Returns how many elements a rank has of an activation with `numbers` elements for a whole
        sequence."""
        return numbers * self.count(rank) // self.length if self.length else numbers

    def seen(self, queries: int, keys: int, causal: bool) -> AttendedSlices:
        """Returns the slices of two ranks' queries and keys that attend to each other."""
        if queries == keys or not causal:
            return AttendedSlices(ALL, ALL, causal)
        if keys < queries:
            return AttendedSlices(ALL, slice(0, self._front(keys)), False)
        return AttendedSlices(slice(self._front(queries), None), ALL, False)

    def _front(self, rank: int) -> int:
        """Returns the number of positions in the first of a rank's two chunks."""
        (start, stop), _ = self.chunks(rank)
        return stop - start

    def keys_seen(self, queries: int, keys: int, causal: bool) -> int:
        """Returns how many keys of rank `keys` some query of rank `queries` sees."""
        return len(range(self.count(keys))[self.seen(queries, keys, causal).keys])


UNCUT = SequenceCut()
"""The SequenceCut without context parallelism: every rank has whole sequences."""


def sequences_of(sharding: Sharding) -> SequenceCut:
    """Returns the SequenceCut of a sharding: how sequences are divided among the ranks along cp."""
    cut = sharding.positions.get("cp", UNCUT)
    assert isinstance(cut, SequenceCut)
    return cut
