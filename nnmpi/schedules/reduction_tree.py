"""One binary tree over the shards of a batch, and what each rank does for the sum along it.

    shards    0   1   2   3   4      rank 0   LEAF 0, LEAF 1, ADD, RECEIVE from 1, ADD
              └─+─┘   │   └─+─┘      rank 1   LEAF 2, LEAF 3, LEAF 4, ADD, ADD, SEND to 0
                │     └──+──┘
                └────+───┘

The tree is that of the shards, wherever they live: so are the bits of the sum. A rank computes with
a stack: a leaf goes on top of it, ADD puts the sum of the two topmost in their place.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple


class Action(Enum):
    """What a move does to the stack of a rank."""

    LEAF = "LEAF"  # a shard is computed: one more
    RECEIVE = "RECEIVE"  # one more, from another rank
    ADD = "ADD"  # one less
    SEND = "SEND"  # the topmost goes to another rank: one less


class Move(NamedTuple):
    """One action, and with which shard (LEAF) or rank (RECEIVE, SEND)."""

    action: Action
    other: int = -1


def moves(owners: Sequence[int], rank: int) -> list[Move]:
    """What a rank does for the sum over shards, of which shard i lives on rank owners[i].

    A sum lives where its first shard does. At most ceil(log2 shards) + 1 are on a stack at a time:
    the topmost, and left parts that wait for their right ones, one for each node above it.

    No ranks wait for each other in a circle. All walk the tree in one order and meet at its nodes,
    two ranks at a node; of the nodes at which somebody waits, take the first: its other rank waits
    nowhere before, so it comes.
    """
    return list(_under(owners, rank, 0, len(owners)))


def _under(owners: Sequence[int], rank: int, a: int, b: int) -> Iterator[Move]:
    """The moves for the sum over shards a to b - 1."""
    if b - a == 1:
        if owners[a] == rank:
            yield Move(Action.LEAF, a)
        return
    m = (a + b) // 2
    yield from _under(owners, rank, a, m)
    yield from _under(owners, rank, m, b)
    left, right = owners[a], owners[m]
    if right == rank != left:
        yield Move(Action.SEND, left)
    if left == rank != right:
        yield Move(Action.RECEIVE, right)
    if left == rank:
        yield Move(Action.ADD)
