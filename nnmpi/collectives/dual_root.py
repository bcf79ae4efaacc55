"""The doubly pipelined all-reduce with two roots (Träff, 2021).

Ranks form two binary trees of about equal size, whose roots exchange what their trees have summed.
The buffer is cut into blocks. A rank exchanges with its first child, its second child and its
parent in turn: with each it sends a block one way while another block comes the other way. So sums
come down while later blocks still go up.

    p = 6    0 <--> 3     T = 0: 1 and 4 send block 0 up      T = 1: 2 and 5 send block 0 up
            1 2    4 5        2: 0 and 3 exchange block 0         3: 1 sends block 1, has the sum 0
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.step import NOBODY, Algorithm, Ranks, Step, only

BLOCKS = 16


class Trees(NamedTuple):
    """The two trees of the doubly pipelined all-reduce, and when each rank exchanges blocks.

    peer     the parent of each rank, or for a root the other root
    sender   the ranks from which each rank receives, an array (3, ranks): its first child, its
             second child and, for a root, the other root; NOBODY where there is none
    depth    the depth of each rank, 0 for roots
    start    the round in which each rank first exchanges a block with its peer
    period   the number of rounds until a rank exchanges with its peer again
    """

    peer: Ranks
    sender: Ranks
    depth: Ranks
    start: Ranks
    period: int


@cache
def trees(p: int) -> Trees:
    """Returns the two trees of p ranks, p >= 2; the first, from rank 0, is the larger one.

    A first child exchanges with its parent two rounds before the parent exchanges with the parent's
    peer; a second or an only child does so one round before.
    """
    half = p - p // 2
    rows = []
    for first, n in ((0, half), (half, p - half)):
        for i in range(n):
            place, depth = i + 1, (i + 1).bit_length() - 1
            only_child = i > 0 and i == n - 1 and i % 2 == 1
            turns = 2 * depth - (place.bit_count() - 1) - only_child
            children = [first + k if k < n else NOBODY for k in (2 * i + 1, 2 * i + 2)]
            other = half - first if i == 0 else NOBODY
            peer = first + (i - 1) // 2 if i else other
            rows.append((peer, *children, other, depth, turns))
    peer, *sender, depth, turns = np.array(rows).T
    return Trees(peer, np.array(sender), depth, turns.max() - turns, min(half, 3))


def _rounds(p: int) -> int:
    """Returns the number of rounds until the last rank has the last block."""
    if p == 1:
        return 0
    t = trees(p)
    return int((t.start + t.period * t.depth).max()) + t.period * (BLOCKS - 1) + 1


def _at(t: int, r: Ranks, p: int) -> Step:
    t, down = divmod(t, 2)
    x = trees(p)

    def block(rank: Ranks) -> Ranks:
        """Returns the number of the block that `rank` sends to its parent (a root: to the other
        root), or receives from it, in this round; NOBODY if it does neither."""
        turn, idle = np.divmod(t - x.start[rank], x.period)
        number = turn - down * x.depth[rank]
        takes_part = (rank >= 0) & (idle == 0) & (x.depth[rank] >= down)
        return only(takes_part & (number >= 0) & (number < BLOCKS), number)

    sender = x.sender[:, r]
    blocks = block(sender)  # one of them at most
    mine, theirs = block(r), blocks.max(axis=0)
    to, source = only(mine >= 0, x.peer[r]), only(blocks >= 0, sender).max(axis=0)
    ranges = (mine, mine + 1), (theirs, theirs + 1)
    if down:
        return Step(source, ranges[1], to, ranges[0], False, 1, 2)
    return Step(to, ranges[0], source, ranges[1], True, 0, 2)


dual_root = Algorithm(lambda p: 2 * _rounds(p), lambda p: BLOCKS, _at)
