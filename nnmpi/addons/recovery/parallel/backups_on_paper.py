"""Computes where backups are sent, how often they are made, and what they cost, without a run.

    node 0   rank 0 ──► rank 2   node 1   rank 2 ──► rank 4   node 2   rank 4 ──► rank 0
             rank 1 ──► rank 3            rank 3 ──► rank 5            rank 5 ──► rank 1

State that exists on one node only is sent to the memory of another node, so the loss of a node does
not lose both the state and its backup. On a single node, state that exists on one rank only goes to
the next rank: it survives the loss of a rank, but not of the node.

Each rank also keeps its own state as of the backup, because all ranks must go back to the same
step. There is memory for two backups: the older one is valid until the newer one is complete.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, cycle

from nnmpi.collectives.algorithms import Collective
from nnmpi.io.output.messages import EventFields
from nnmpi.nn.place import StateArray
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import FLOAT64, Exchange, Traffic, sent
from nnmpi.parallel.arrangement.state_on_paper import Holders, holders_on_paper, state_on_paper
from nnmpi.schedules.op import Kind

VERSIONS_KEPT = 2

AGREED_VALUES = 2
"""Values that ranks sum after a backup: seconds of it and of a step."""


def neighbours(nodes: Sequence[int]) -> tuple[int, ...]:
    """Returns, for each rank, the rank that keeps its backup, if possible on another node, else the
    next. `nodes` has the node number of each rank; nodes of equal size share the backups
    equally."""
    by_node: dict[int, list[int]] = {}
    for r, node in enumerate(nodes):
        by_node.setdefault(node, []).append(r)
    groups, keepers = [*by_node.values()], [0] * len(nodes)
    for k, ranks in enumerate(groups):
        elsewhere = groups[k + 1 :] + groups[:k] or [ranks[1:] + ranks[:1]]
        for r, keeper in zip(ranks, cycle(chain.from_iterable(elsewhere)), strict=False):
            keepers[r] = keeper
    return tuple(keepers)


def steps_between(cost: float, step: float, mtbf: float) -> int:
    """Returns the steps until the next backup, by Young's formula: sqrt(2 cost mtbf) seconds.

    `cost` is the seconds of a backup, `mtbf` those between failures. More frequent backups cost
    more time than they save; less frequent ones lose more steps.
    """
    return max(1, round(math.sqrt(2 * cost * mtbf) / max(step, 1e-9)))


def backed_up(a: Arrangement, rank: int, holders: Holders | None = None) -> list[StateArray]:
    """Returns a rank's arrays that exist on no other node, or, on a single node, on no other rank.
    They need a backup. `holders` is an index of the arrays of all ranks, by default computed."""
    near = a.cluster.near(rank, range(a.ranks))
    return (holders or holders_on_paper(a)).only_on(rank, near if len(near) < a.ranks else ())


def needs_backups(a: Arrangement, holders: Holders | None = None) -> bool:
    """Returns True if backups are requested and some state is on a single rank or node only."""
    is_asked = a.config.backup is not None and a.ranks > 1
    return is_asked and any(backed_up(a, r, holders) for r in range(a.ranks))


def backups_of(a: Arrangement) -> Callable[[int], tuple[Traffic, int]] | None:
    """Returns a rank's cost of a backup as a function, or None."""
    return partial(backup, a) if needs_backups(a) else None


def backup(a: Arrangement, rank: int) -> tuple[Traffic, int]:
    """Returns a rank's cost of a backup: (bytes and messages that it sends, also to agree that the
    backup is complete on all ranks; bytes of memory for its own state and that which it keeps for
    others)."""
    kept_for = (r for r, keeper in enumerate(neighbours(a.cluster.nodes)) if keeper == rank)
    of_others = sum(_bytes(backed_up(a, r)) for r in kept_for)
    message, how = _bytes(backed_up(a, rank)), (Collective.ALL_REDUCE, "doubling")
    agreement = Exchange(
        "agreement", *how, tuple(range(a.ranks)), AGREED_VALUES, FLOAT64, Kind.APPLY
    )
    return (
        Traffic(message, int(message > 0)) + sent(a, agreement, rank),
        VERSIONS_KEPT * (_bytes(state_on_paper(a, rank)) + of_others),
    )


def layout_fields(a: Arrangement) -> dict[str, int]:
    """Returns the field `backup` of the start event: the steps between two backups."""
    return {"backup": a.config.backup}


def _bytes(arrays: Iterable[StateArray]) -> int:
    return sum(x.nbytes for x in arrays)


FIELDS = EventFields(layout=layout_fields)
