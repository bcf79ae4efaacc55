"""ReplicaState: the state that each replica has with other values, and which replica takes whose.

The tables in docs/local-steps.md and docs/compression.md say it in words.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from nnmpi.nn.place import Range, StateArray

DIFFERENCE = "replica_difference"
"""The name of the state by which a replica's own values differ from those that all show. It is of
no use among other replicas."""

RESIDUAL = "compress_residual"
"""The name of what a replica has not sent yet. The sum over the replicas counts: among fewer
replicas, one takes the sum of several, and among more, a new one has zeros."""

REPLICA = "@"
"""The sign before the number of a replica, in the names of arrays that are its own."""


class ReplicaState(NamedTuple):
    """The state arrays that differ between replicas.

    replica   the number of this one, of `replicas`
    names     of the arrays
    """

    replica: int = 0
    replicas: int = 1
    names: tuple[str, ...] = ()

    def own(self, x: StateArray) -> StateArray:
        """Returns a state array under the number of this replica, if other replicas have other
        values, as `fc.weight.momentum_buffer@2`."""
        _, state = split(x.name)
        return x.named(f"{x.name}{REPLICA}{self.replica}") if state in self.names else x


def terms_of(saved: Iterable[StateArray], old: int, new: int) -> Callable[[str], list[str]]:
    """Returns the function that gives, by the name of a state array, the names of the saved ones
    that it is the sum of; none if it keeps its initial values.

    old, new   how many replicas there were when the arrays were saved, and how many there are
    """
    shared = set[str]()
    ranges = defaultdict[tuple[str, int], set[Range]](set)  # by state and replica
    sizes = defaultdict[str, dict[str, int]](dict)  # by state: of the whole arrays
    for x in saved:
        name, number = unnumbered(x.name)
        if number is None:
            shared.add(name)
            continue
        _, state = split(name)
        ranges[state, number].add(x.named(name).range)
        sizes[state][name] = prod(x.place.shape)
    complete = defaultdict[str, list[int]](list)  # by state: the replicas of which no part is lost
    for (state, number), parts in sorted(ranges.items()):
        if sum(part.size for part in parts) >= sum(sizes[state].values()):
            complete[state].append(number)

    def terms(name: str) -> list[str]:
        name, number = unnumbered(name)
        if name in shared:
            return [name]
        _, state = split(name)
        replicas = _sources(state, number, complete[state], old, new) if complete[state] else []
        return [f"{name}{REPLICA}{replica}" for replica in replicas]

    return terms


def _sources(state: str, number: int | None, saved: Sequence[int], old: int, new: int) -> list[int]:
    """Returns the replicas whose arrays one of `new` replicas takes, added up; `saved` are those
    that are there: of all of `old`, but after a loss. `number` is None for an array that all
    replicas have alike."""
    if state == RESIDUAL:
        return [*saved[number or 0 :: new]]
    if state == DIFFERENCE and not len(saved) == old == new:
        return []
    return [saved[(number or 0) % len(saved)]]


def split(name: str) -> tuple[str, str]:
    """Returns the path of the parameter and the name of the state in the name of a state array."""
    path, _, state = name.rpartition(".")
    return path, state


def unnumbered(name: str) -> tuple[str, int | None]:
    """Returns the name of a state array without the number of a replica, and that number."""
    shared, sign, number = name.rpartition(REPLICA)
    return (shared, int(number)) if sign and number.isdigit() else (name, None)


def of_one(names: Iterable[str]) -> list[str]:
    """Returns the names of the arrays that a single copy of the state has; the residual, of which
    it has the sum over all replicas, is the last."""
    return sorted((name for name in names if name != DIFFERENCE), key=RESIDUAL.__eq__)
