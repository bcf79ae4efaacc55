"""SlotWalk: which bucket of parameters ZeRO 3 has in which slot, and which it gathers when.

    forward     use 0   gather 1 | use 1   gather 2 | use 2
    backward    use 2            | use 1   gather 0 | use 0        1 was still there
    slot        0       1          1       0          0

The store carries it out (`parallel/zero/parameters.py`), and `gathered` counts it on paper.
"""

from collections import Counter
from collections.abc import Sequence

from nnmpi.parallel.arrangement.arrangement import Arrangement, users_of
from nnmpi.parallel.arrangement.program import ops
from nnmpi.schedules.op import Kind

SLOTS = 2
"""Of ZeRO: for the gradients, and for the parameters, of two buckets."""

NONE = -1
FORWARD, BACKWARD = 1, -1


class SlotWalk:
    """Bucket b is always in slot b mod SLOTS, and `stages` are those that use each bucket."""

    def __init__(self, stages: Sequence[frozenset[int]]) -> None:
        self._stages = stages
        self._begin()
        self._first = NONE

    def _begin(self) -> None:
        self._held = [NONE] * min(SLOTS, len(self._stages))
        self._current = NONE, FORWARD

    def holds(self, b: int) -> bool:
        """Whether bucket b is in its slot, or on its way there."""
        return self._held[b % SLOTS] == b

    def use(self, b: int, towards: int) -> list[int]:
        """The buckets to gather for a use of b in this direction: b itself, and the next one."""
        if self._current == (b, towards):
            return []
        following = b + towards
        wanted = [b]
        if 0 <= following < len(self._stages) and self._stages[b] & self._stages[following]:
            wanted.append(following)
        self._current = b, towards
        if self._first == NONE:
            self._first = b
        return [k for k in wanted if self._taken(k)]

    def updated(self) -> list[int]:
        """All values have changed: the bucket that was used first comes again."""
        self._begin()
        first, self._first = self._first, NONE
        return [first] if first != NONE and self._taken(first) else []

    def _taken(self, b: int) -> bool:
        """Gives its slot to bucket b, unless it has it."""
        there = self.holds(b)
        self._held[b % SLOTS] = b
        return not there


def gathered(a: Arrangement, rank: int, micro: int) -> Counter[int]:
    """How often a rank gathers each bucket in a step, by its place in the order of memory."""
    held = a.held(rank)
    inside = [held.inside(bucket) for bucket in sorted(held.buckets)]
    of = {one.variable: b for b, members in enumerate(inside) for one in members}
    walk = SlotWalk([*map(users_of, inside)])
    found: Counter[int] = Counter()
    for _ in range(2):  # the first step of a run begins with empty slots
        found.clear()
        for op in ops(a, rank, micro):
            nodes = a.stages[op.stage] if op.stage >= 0 else range(0)
            uses = [of[v] for k in nodes for v in a.graph.nodes[k].variables if v in of]
            if op.kind in (Kind.F, Kind.RECOMPUTE):
                found.update(b for use in uses for b in walk.use(use, FORWARD))
            elif op.kind in (Kind.B, Kind.I, Kind.W):
                found.update(b for use in uses[::-1] for b in walk.use(use, BACKWARD))
        found.update(walk.updated())
    return found
