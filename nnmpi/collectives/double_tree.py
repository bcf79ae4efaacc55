"""The double binary tree of Sanders, Speck and Träff (2009).

Each half of the buffer goes up a tree, in chunks that follow each other. The second tree is
mirrored, or shifted by a rank if p is odd. So a rank that has children in one tree has none in the
other, and all send and receive about as much.

    p = 6    the tree        3             mirrored      2
                         1       5                   4       0
                       0   2   4                   5   3   1
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.combine import among, beside
from nnmpi.collectives.step import NOBODY, Algorithm, Ranks, Step, only

CHUNKS = 8  # of a half


class InOrder(NamedTuple):
    """A binary tree of ranks, as arrays, whose in-order traversal visits ranks 0, 1, 2 ...; NOBODY
    where there is no parent or child."""

    parent: Ranks
    child: Ranks  # [0 on the left and 1 on the right, rank]
    depth: Ranks


@cache
def in_order(p: int) -> InOrder:
    """Returns the binary tree of p ranks whose in-order traversal visits ranks 0, 1, 2 ...: rank r
    stands at the height of the lowest bit of r + 1, so even ranks are leaves."""
    x = np.arange(1, p + 1)
    bit = x & -x
    up = (x ^ bit) | (bit << 1)
    parent = np.where(up > p, x ^ bit, up) - 1
    child = np.full((2, p), NOBODY)
    below = np.flatnonzero(parent >= 0)
    child[(below > parent[below]).astype(int), parent[below]] = below
    depth, above = np.zeros(p, int), parent
    while (above >= 0).any():
        depth += above >= 0
        above = only(above >= 0, parent[above])
    return InOrder(parent, child, depth)


def _up_the_tree(t: int, r: Ranks, p: int) -> Step:
    tree, (t, side) = in_order(p), divmod(t, 2)
    out = t - (p.bit_length() - 1) + tree.depth[r]
    parent, child, into = tree.parent[r], tree.child[side, r], out + 1
    sends = (parent >= 0) & (tree.child[side, parent] == r) & (out >= 0) & (out < CHUNKS)
    receives = (child >= 0) & (into >= 0) & (into < CHUNKS)
    ranges = (out, out + 1), only(receives, child), (into, into + 1)
    return Step(only(sends, parent), *ranges, True, side, 2)


up_the_tree = Algorithm(
    lambda p: 2 * (p.bit_length() + CHUNKS - 2) * (p > 1), lambda p: CHUNKS, _up_the_tree
)
mirrored = among(up_the_tree, lambda p: [*range(p)[::-1]] if p % 2 == 0 else [*range(1, p), 0])
double_tree = beside([up_the_tree, mirrored])
