"""Sums the gradients of the slices of a batch along a fixed binary tree: plans, for each rank, the
moves (computations, additions and messages) that it makes.

    slices    0   1   2   3   4      rank 0   LEAF 0, LEAF 1, ADD, RECEIVE from 1, ADD
              └─+─┘   │   └─+─┘      rank 1   LEAF 2, LEAF 3, LEAF 4, ADD, ADD, SEND to 0
                │     └──+──┘
                └────+───┘

The tree, and so the bits of the sum, depend on the number of slices alone, not on the ranks that
hold them. A rank computes with a stack of gradients: a leaf is pushed, and ADD replaces the two
topmost gradients by their sum.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate
from typing import NamedTuple


class Action(Enum):
    """The kind of a rank's move, by its effect on the rank's stack of gradients."""

    LEAF = "LEAF"  # compute a slice: push
    RECEIVE = "RECEIVE"  # from another rank: push
    ADD = "ADD"  # pop, and add to the new top
    SEND = "SEND"  # pop, and send to another rank


class TreeMove(NamedTuple):
    """One move of a rank; `other` is the slice of a LEAF, or the rank to which a SEND sends or from
    which a RECEIVE receives."""

    action: Action
    other: int = -1


def moves(owners: Sequence[int], rank: int) -> list[TreeMove]:
    """Returns what a rank does, in order, so that gradients are summed along the tree of slices;
    slice i is on rank owners[i].

    A partial sum is on the rank of its first slice. A stack has at most ceil(log2 slices) + 1 sums
    at a time: the newest one, and for each node of the tree above it at most one left part, which
    waits for its right part.

    No rank waits forever, since all ranks walk the tree in the same order, and only two ranks take
    part in an exchange.
    """
    return list(_subtree_moves(owners, rank, 0, len(owners)))


def owners_of(slices: int, ranks: int) -> list[int]:
    """Returns the rank of each slice: slices are distributed as equally as possible, in order."""
    return [r for r in range(ranks) for _ in range(slices * r // ranks, slices * (r + 1) // ranks)]


def max_stack_depth(plan: Sequence[TreeMove]) -> int:
    """Returns the most gradients on a rank's stack during the moves of `plan`."""
    grows = (Action.LEAF, Action.RECEIVE)
    return max(1, *accumulate(1 if move.action in grows else -1 for move in plan))


def _subtree_moves(owners: Sequence[int], rank: int, a: int, b: int) -> Iterator[TreeMove]:
    """Yields a rank's moves for slices a..b-1 of the tree; slice i is on owners[i]."""
    if b - a == 1:
        if owners[a] == rank:
            yield TreeMove(Action.LEAF, a)
        return
    m = (a + b) // 2
    yield from _subtree_moves(owners, rank, a, m)
    yield from _subtree_moves(owners, rank, m, b)
    left, right = owners[a], owners[m]
    if right == rank != left:
        yield TreeMove(Action.SEND, left)
    if left == rank != right:
        yield TreeMove(Action.RECEIVE, right)
    if left == rank:
        yield TreeMove(Action.ADD)
