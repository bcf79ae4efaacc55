"""Chain: the part of a model on one rank, cut into units, and the buckets of its parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from nnmpi.schedules.op import FORWARD, NONE, Op
from nnmpi.schedules.placement import Place, stages_of


class Unit(NamedTuple):
    """A part of a stage, usually one layer or block, whose passes are single operations.

    variables        the numbers of its parameters and buffers
    buckets          the buckets of its parameters, in the order of memory
    repeated         further buckets that its backward pass reads, because it recomputes other units
    takes_gradient   whether the backward pass of its stage computes the gradient of the input
    """

    stage: int
    variables: frozenset[int]
    buckets: tuple[int, ...]
    repeated: tuple[int, ...]
    takes_gradient: bool


@dataclass(frozen=True)
class Chain:
    """The units of one rank, stage by stage, and its buckets of parameters in the order of memory.

    lengths the number of elements of each bucket
    place   the rank along pp of each stage of the pipeline
    tied    a dict: bucket of a parameter that stages of other ranks use too -> that parameter
    """

    units: tuple[Unit, ...]
    lengths: tuple[int, ...]
    place: tuple[int, ...]
    tied: Mapping[int, int]

    @classmethod
    def of_whole_stages(cls, place: Place, rank: int) -> "Chain":
        """Returns the Chain of a rank with whole stages as units, and no buckets."""
        units = (Unit(s, frozenset(), (), (), True) for s in stages_of(place, rank))
        return cls((*units,), (), (*place,), {})

    @cached_property
    def of_stage(self) -> Mapping[int, range]:
        """The range of this rank's unit numbers, for each of its stages."""
        ends = [u for u, (a, b) in enumerate(pairwise(self.units), 1) if a.stage != b.stage]
        bounds = pairwise([0, *ends, len(self.units)])
        return {self.units[a].stage: range(a, b) for a, b in bounds}

    @cached_property
    def users(self) -> Sequence[Sequence[int]]:
        """For each bucket, the numbers of the units that use it."""
        numbered = [*enumerate(self.units)]
        return [[u for u, unit in numbered if b in unit.buckets] for b in range(len(self.lengths))]

    def read_by(self, op: Op) -> Sequence[int]:
        """Returns the buckets that must be in memory for a pass of one unit."""
        unit = self.units[op.at]
        return unit.buckets if op.kind in FORWARD else (*unit.repeated, *unit.buckets)

    def neighbours(self, u: int, away: int) -> tuple[int, int]:
        """Returns (unit, boundary) for the unit before unit u (`away` = -1) or after it (`away` =
        +1): boundary is NONE if that is on this rank. If it is on another rank, unit is NONE, and
        boundary is the number of the stage that begins between the two. At an end of the model both
        are NONE."""
        stage = self.units[u].stage
        inside = self.of_stage[stage]
        if u + away in inside:
            return u + away, NONE
        other = stage + away
        if not 0 <= other < len(self.place):
            return NONE, NONE
        if other in self.of_stage:
            return self.of_stage[other][0 if away > 0 else -1], NONE
        return NONE, max(stage, other)
