"""Gossip as values: the neighbours of each replica, and the weights with which it mixes parameters.

Replicas stand on a grid of rows and columns whose ends are joined. Each sends its parameters to the
replicas at the same offsets from it, and takes the mean of its own and of those that it receives:

    ring, n = 5          1 x 5, offsets +1 -1        x_r <- (x_r + x_{r-1} + x_{r+1}) / 3
    exponential, n = 8   1 x 8, offsets +1 +2 +4     x_r <- (x_r + x_{r-1} + x_{r-2} + x_{r-4}) / 4

An exchange is a permutation of the replicas, so the matrix that mixes is a mean of permutations:
its rows and columns sum to 1, and the mean of all replicas does not change.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import isqrt
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.step import PlanError


class Peers(NamedTuple):
    """One exchange of a replica with others, as two numbers of replicas: it sends its parameters to
    replica `to`, and at the same time receives those of replica `source`."""

    to: int
    source: int


class Gossip(NamedTuple):
    """A graph of replicas that mix their parameters. Replica r stands on a grid, in row r //
    columns and column r % columns, and sends to one replica for each of `offsets`: (rows down,
    columns to the right) from its own place, where the ends of rows and columns are joined."""

    rows: int
    columns: int
    offsets: tuple[tuple[int, int], ...]

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.rows * self.columns

    @property
    def weight(self) -> Fraction:
        """The weight of each neighbour's parameters, and one's own: 1 / (their number)."""
        return Fraction(1, 1 + len(self.offsets))

    def exchanges(self, r: int) -> list[Peers]:
        """Returns the exchanges of replica r in one step, one for each offset: it sends to the
        replica there, and receives from the opposite direction."""
        row, column = divmod(r, self.columns)

        def at(rows: int, columns: int) -> int:
            return (row + rows) % self.rows * self.columns + (column + columns) % self.columns

        return [Peers(at(i, j), at(-i, -j)) for i, j in self.offsets]

    def mixing(self) -> list[list[Fraction]]:
        """Returns the mixing matrix: row r has the weights in the mean of replica r."""
        matrix = [[Fraction(0)] * self.replicas for _ in range(self.replicas)]
        for r, row in enumerate(matrix):
            for source in (r, *(peers.source for peers in self.exchanges(r))):
                row[source] += self.weight
        return matrix

    def gap(self) -> float:
        """The spectral gap: 1 - the second largest modulus of an eigenvalue of the mixing matrix.

        Each step multiplies the replicas' distance from their mean by at most 1 - gap. The
        eigenvalues are the Fourier transform of a row, since the rows are cyclic shifts of it.
        """
        row = np.zeros((self.rows, self.columns))
        for i, j in ((0, 0), *self.offsets):
            row[i % self.rows, j % self.columns] += float(self.weight)
        return 1 - float(np.sort(np.abs(np.fft.fft2(row)), axis=None)[:-1].max(initial=0))


def on_grid(rows: int, columns: int, offsets: Iterable[tuple[int, int]]) -> Gossip:
    """Returns the gossip graph on a grid with these offsets, each replica once."""
    distinct = dict.fromkeys((i % rows, j % columns) for i, j in offsets)
    return Gossip(rows, columns, tuple(offset for offset in distinct if offset != (0, 0)))


def torus(n: int) -> Gossip:
    """The gossip graph on the grid of n places closest to a square: left, right, above, below."""
    rows = next(side for side in range(isqrt(n), 0, -1) if n % side == 0)
    return on_grid(rows, n // rows, [(0, 1), (0, -1), (1, 0), (-1, 0)])


GRAPHS: dict[str, Callable[[int], Gossip]] = {
    "ring": lambda n: on_grid(1, n, [(0, 1), (0, -1)]),
    "torus": torus,
    "exponential": lambda n: on_grid(1, n, [(0, 1 << k) for k in range((n - 1).bit_length())]),
    "complete": lambda n: on_grid(1, n, [(0, k) for k in range(1, n)]),
}
"""Graphs of neighbours by name, each for any number of replicas."""


def prove(graph: Gossip) -> None:
    """Raises PlanError unless every message of the graph has a receiver that expects it, weights
    are positive and sum to 1 for each receiver and each sender, and each replica reaches all."""
    everyone = range(graph.replicas)
    peers = [graph.exchanges(r) for r in everyone]
    for r in everyone:
        for k, (to, _) in enumerate(peers[r]):
            if to == r or peers[to][k].source != r:
                raise PlanError(
                    f"exchange {k}: replica {r} sends to {to}, which receives from "
                    f"{peers[to][k].source}"
                )
    matrix = graph.mixing()
    for name, vectors in (("receives", matrix), ("sends", zip(*matrix, strict=True))):
        for r, weights in enumerate(vectors):
            if min(weights) < 0 or weights[r] <= 0 or sum(weights) != 1:
                raise PlanError(f"the weights that replica {r} {name} sum to {sum(weights)}, not 1")
    if missing := set(everyone) - _reached(peers):
        raise PlanError(f"nothing that replica 0 sends reaches replica {min(missing)}")


def _reached(peers: Sequence[Sequence[Peers]]) -> set[int]:
    """Returns the replicas that parameters of replica 0 reach after any number of exchanges
    `peers`. All replicas send to the same offsets, so every other replica reaches as many."""
    reached, new = {0}, {0}
    while new := {to for r in new for to, _ in peers[r]} - reached:
        reached |= new
    return reached
