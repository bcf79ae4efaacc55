"""Placements: the rank of each stage of a pipeline, as a tuple.

    6 stages on 3 ranks    round_robin   0 1 2 0 1 2        in_v   0 1 2 2 1 0

In a V, a stage that waits long for its gradients is on the same rank as one that gets them soon. So
all ranks keep about equally many activations. The first and the last stage are on the same rank.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

Place: TypeAlias = Sequence[int]
"""The rank of each stage."""

Placement: TypeAlias = Callable[[int, int], tuple[int, ...]]
"""A function of p ranks and v stages a rank that returns the rank of each of the p*v stages."""


def round_robin(p: int, v: int) -> tuple[int, ...]:
    """Stage s is on rank s % p."""
    return tuple(range(p)) * v


def in_v(p: int, v: int) -> tuple[int, ...]:
    """Two stages per rank (v = 2): the first p in the order of ranks, the others in reverse."""
    return (*range(p), *reversed(range(p)))


def stages_of(place: Place, rank: int) -> list[int]:
    """The stages of a rank, in order."""
    return [s for s, of in enumerate(place) if of == rank]
