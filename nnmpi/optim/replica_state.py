"""ReplicaState: the state that each replica has with other values, and which replica takes whose.

The table in docs/communicating-less.md says it in words.
"""

from collections.abc import Sequence
from typing import NamedTuple

DIFFERENCE = "replica_difference"
"""The name of the state by which a replica's own values differ from those that all show. It is of
no use among other replicas."""

RESIDUAL = "compress_residual"
"""The name of what a replica has not sent yet. The sum over the replicas counts: among fewer
replicas, one takes the sum of several, and among more, a new one has zeros."""


class ReplicaState(NamedTuple):
    """The state arrays that differ between replicas.

    replica   the number of this one, of `replicas`
    names     of the arrays
    """

    replica: int = 0
    replicas: int = 1
    names: tuple[str, ...] = ()

    def sources(self, name: str, saved: Sequence[int], replicas: int) -> list[int]:
        """Returns the replicas whose arrays this one takes, added up; zeros if there are none.

        saved      the numbers of those whose arrays are there: of all, but after a loss
        replicas   how many there were
        """
        if name == RESIDUAL:
            return [*saved[self.replica :: self.replicas]]
        if name == DIFFERENCE and not len(saved) == replicas == self.replicas:
            return []
        # an array that is not among `names` now has equal values on all ranks
        return [saved[(self.replica if name in self.names else 0) % len(saved)]]


def of_one(names: Sequence[str]) -> list[str]:
    """Returns the names of the arrays that a single copy of the state has; the residual, of which
    it has the sum over all replicas, is the last."""
    return sorted((name for name in names if name != DIFFERENCE), key=RESIDUAL.__eq__)
