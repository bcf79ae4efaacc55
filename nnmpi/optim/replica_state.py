"""ReplicaState: the optimizer state that differs between data-parallel replicas, as with local
steps or compressed gradients; and which saved arrays a replica takes if the number of replicas
changes.

The tables in docs/local-steps.md and docs/compression.md explain the rules.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from nnmpi.nn.place import Range, StateArray
from nnmpi.optim.state import split

DIFFERENCE = "replica_difference"
"""The name of the state that is the difference between a replica's own values and those that all
replicas share. It is useless among other replicas."""

RESIDUAL = "compress_residual"
"""The name of the state that a replica has not sent yet. Its sum over the replicas is preserved:
among fewer, one takes the sum of several, and among more, a new one has zeros."""

REPLICA = "@"
"""The sign before the replica's number in the name of a state array of its own."""


class ReplicaState(NamedTuple):
    """The names of the state arrays that differ between replicas, and the number of this one."""

    replica: int = 0
    replicas: int = 1
    names: tuple[str, ...] = ()

    def own(self, x: StateArray) -> StateArray:
        """Returns a state array with the number of this replica in its name, such as
        `fc.weight.momentum_buffer@2`, if it differs between replicas; otherwise unchanged."""
        _, state = split(x.name)
        return x.named(f"{x.name}{REPLICA}{self.replica}") if state in self.names else x


def sources_of(saved: Iterable[StateArray], old: int, new: int) -> Callable[[str], list[str]]:
    """Returns a function f, by which state is restored with another number of replicas: f(name of a
    state array of this replica) lists the names of the arrays in `saved` whose sum are its values;
    none: it keeps its initial values.

    old, new   the number of replicas when the arrays were saved, and now
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

    def sources(name: str) -> list[str]:
        name, number = unnumbered(name)
        if name in shared:
            return [name]
        _, state = split(name)
        replicas = _replicas(state, number, complete[state], old, new) if complete[state] else []
        return [f"{name}{REPLICA}{replica}" for replica in replicas]

    return sources


def _replicas(
    state: str, number: int | None, saved: Sequence[int], old: int, new: int
) -> list[int]:
    """Returns the replicas whose saved arrays are added up to restore `state` on replica `number`
    (None: state that all share). The arrays of `saved` were saved completely."""
    if state == RESIDUAL:
        return [*saved[number or 0 :: new]]
    if state == DIFFERENCE and not len(saved) == old == new:
        return []
    return [saved[(number or 0) % len(saved)]]


def unnumbered(name: str) -> tuple[str, int | None]:
    """Splits the name of a state array, such as "fc.weight.momentum_buffer@2", into the name
    without "@2" and the number of the replica, None if it has none."""
    shared, sign, number = name.rpartition(REPLICA)
    return (shared, int(number)) if sign and number.isdigit() else (name, None)


def of_one(names: Iterable[str]) -> list[str]:
    """Returns those `names` of state arrays that a single replica needs: all except DIFFERENCE,
    with RESIDUAL at the end, of which it gets the sum over all replicas."""
    return sorted((name for name in names if name != DIFFERENCE), key=RESIDUAL.__eq__)
