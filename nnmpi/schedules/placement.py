"""Placements: which rank has which stage of a pipeline, as a tuple with the rank of each stage.

    6 stages on 3 ranks    round_robin   0 1 2 0 1 2        in_v   0 1 2 2 1 0

With `in_v`, a stage that waits long for its gradients is on the same rank as one that gets them
soon. So all ranks keep about equally many activations. The first and last stage are on one rank.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

Place: TypeAlias = Sequence[int]
"""The rank of each stage."""

Placement: TypeAlias = Callable[[int, int], tuple[int, ...]]
"""A function of p ranks and v stages a rank that returns the rank of each of the p*v stages."""


def round_robin(p: int, v: int) -> tuple[int, ...]:
    """Returns the rank of each of p*v stages in turn: stage s is on rank s % p."""
    return tuple(range(p)) * v


def in_v(p: int, v: int) -> tuple[int, ...]:
    """Returns the rank of each of 2 p stages: in the order of ranks, then in reverse."""
    return (*range(p), *reversed(range(p)))


def stages_of(place: Place, rank: int) -> list[int]:
    """Returns the stages that a rank has, in order; `place` is the rank of each stage."""
    return [s for s, of in enumerate(place) if of == rank]
