"""Backups on paper: where they go, how often they are made, and what they take.

    node 0   rank 0 ──► rank 2   node 1   rank 2 ──► rank 4   node 2   rank 4 ──► rank 0
             rank 1 ──► rank 3            rank 3 ──► rank 5            rank 5 ──► rank 1

What a node alone has goes from its ranks to the memory of another one, so no node takes a part and
its backup with it. On one node, what a rank alone has goes to the next rank: it outlives a rank,
and not the node.

Each rank keeps what it has itself of that version, too: ranks go back to one version together.
There is memory for two versions, since the one before counts until the next one is complete.

Bytes are counted by places: a backup is made between steps, so no log of a step has it. The tests
hold them to what runs send.
"""

import math
from collections.abc import Sequence
from itertools import chain, cycle
from typing import NamedTuple

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Traffic, agreed, sent
from nnmpi.parallel.arrangement.unreplicated import (
    Unreplicated,
    bytes_of,
    unreplicated,
    updated_ranges,
)

VERSIONS_KEPT = 2

AGREED_VALUES = 2
"""Numbers that ranks add up when a backup is complete: the seconds of it, and those of a step."""

COUNT = 8
"""Bytes that say how often a tensor was updated, in front of each stretch of its numbers."""


def neighbours(nodes: Sequence[int]) -> tuple[int, ...]:
    """For each rank the one that keeps its backup, where ranks are on these nodes: on another node,
    if there is one, and another rank, if there is one. Nodes of one size share them equally."""
    by_node: dict[int, list[int]] = {}
    for r, node in enumerate(nodes):
        by_node.setdefault(node, []).append(r)
    groups, keepers = [*by_node.values()], [0] * len(nodes)
    for k, here in enumerate(groups):
        elsewhere = groups[k + 1 :] + groups[:k] or [here[1:] + here[:1]]
        for r, keeper in zip(here, cycle(chain.from_iterable(elsewhere)), strict=False):
            keepers[r] = keeper
    return tuple(keepers)


def steps_between(cost: float, step: float, mtbf: float) -> int:
    """After how many steps the next backup is due, where one takes `cost` seconds, a step takes
    `step`, and between two failures there are `mtbf`: Young's sqrt(2 cost mtbf) seconds (1974).

    More of them take longer than the steps that they save, fewer lose more steps.
    """
    return max(1, round(math.sqrt(2 * cost * mtbf) / max(step, 1e-9)))


def backed_up(a: Arrangement, rank: int) -> Unreplicated:
    """The variables with state that a rank backs up, since no other node has it; on one node, no
    other rank."""
    near = a.cluster.near(rank, range(a.ranks))
    return unreplicated(a, rank, near if len(near) < a.ranks else ())


def needs_backups(a: Arrangement) -> bool:
    """Whether backups are asked for, and some rank has what would be lost with it or its node."""
    is_asked = a.config.backup is not None and a.ranks > 1
    return is_asked and any(any(backed_up(a, r)) for r in range(a.ranks))


class Backup(NamedTuple):
    """The cost of backups on a rank.

    sent   for one of them, messages by which ranks agree included
    held   bytes of memory: of its own parts, and of those that it keeps for others
    """

    sent: Traffic
    held: int


NO_BACKUP = Backup(Traffic(), 0)


def backup(a: Arrangement, rank: int) -> Backup:
    """The cost of backups on a rank, where they are needed."""
    held, everyone = a.model_on(rank), tuple(range(a.ranks))
    sets = (
        frozenset(variable.variable for variable in held_here)
        for held_here in (held.trained, held.others)
    )
    kept = (r for r, keeper in enumerate(neighbours(a.cluster.nodes)) if keeper == rank)
    of_others = sum(_bytes(a, r, backed_up(a, r)) for r in kept)
    message = _bytes(a, rank, backed_up(a, rank))
    return Backup(
        Traffic(message, int(message > 0)) + sent(a, agreed(everyone, AGREED_VALUES), rank),
        VERSIONS_KEPT * (_bytes(a, rank, Unreplicated(*sets)) + of_others),
    )


def _bytes(a: Arrangement, rank: int, variables: Unreplicated) -> int:
    """The bytes of what a rank updates of these variables, in a message."""
    sizes = [numbers.size for v, numbers in updated_ranges(a, rank) if v in variables.trained]
    return bytes_of(a, rank, variables, sizes) + COUNT * (len(sizes) + len(variables.others))
