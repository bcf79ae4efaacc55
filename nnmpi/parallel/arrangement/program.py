"""The program of a rank in a step, its micro-batches, and when ZeRO 3 gathers which parameters."""

from collections.abc import Sequence

import numpy as np

from nnmpi.data.loader import BatchSplit, part_of
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.residence import Residence
from nnmpi.parallel.mesh import BATCH
from nnmpi.schedules import proof
from nnmpi.schedules.lowering import forward_programs, programs
from nnmpi.schedules.op import Kind, Op, slice_by_slice, stage_by_stage
from nnmpi.schedules.reduction_tree import owners_of


def ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """Returns the program of a rank for a step of `micro` micro-batches; for PipeDream, of `micro`
    steps.

    PipeDream runs the same ops one at a time (`stream` in `schedules/lowering.py`).
    """
    if a.config.reproducible:
        return slice_by_slice(micro)
    if a.residences is not None:
        return stage_by_stage(micro, [how is Residence.RECOMPUTE for how in a.residences.choice])
    return _programs(a, micro)[a.mesh.coordinates(rank)["pp"]]


@cached
def _programs(a: Arrangement, micro: int) -> Sequence[list[Op]]:
    """Returns the programs of all ranks along pp."""
    pp, schedule = a.mesh.axes["pp"], proof.find(a.config.schedule)
    return programs(schedule, pp, micro, len(a.stages) // pp, a.config.recompute == "stage")


def forward_ops(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """Returns the program of a rank that evaluates a batch in `micro` micro-batches."""
    if a.residences is not None:
        return [op for op in ops(a, rank, micro) if op.kind is Kind.F]
    return forward_programs(a.division.place, micro)[a.mesh.coordinates(rank)["pp"]]


def micro_batches(a: Arrangement, rank: int, batch: int) -> list[int]:
    """Returns the number of samples in each micro-batch of a rank, for a batch of `batch`
    samples."""
    rows = np.arange(batch)
    if a.config.reproducible:
        owners = owners_of(a.config.slices, a.mesh.size)
        slices = (v for v, owner in enumerate(owners) if owner == rank)
        return [len(part_of(rows, a.config.slices, v)) for v in slices]
    group = a.mesh.group(rank, *BATCH)
    split = BatchSplit(a.config.micro_batches, len(group), group.index(rank))
    return [len(part) for part in split(rows)]


def measured_samples(config: Config, parts: int) -> int:
    """Returns how many samples to measure the units of a model with: a rank's samples in a
    micro-batch."""
    return max(-(-config.batch_size // (config.micro_batches * parts)), 2)


# ---- ZeRO 3

SLOTS = 2
"""The number of slots of ZeRO 3 for gradients, and for parameters: one bucket is in use while the
next one is gathered."""

NONE = -1
FORWARD, BACKWARD = 1, -1


class SlotWalk:
    """The plan of ZeRO 3's parameter slots: which bucket is in which slot, and when it is gathered.

        forward     use 0   gather 1 | use 1   gather 2 | use 2
        backward    use 2            | use 1   gather 0 | use 0        1 was still there
        slot        0       1          1       0          0

    Bucket b always uses slot b mod `slots`; `stages` are the stages that use each bucket. The store
    that follows this plan is in `parallel/stores/weight_slots.py`.

    If ranks may use different buckets, because `forward` may depend on values, then `at_once`: each
    bucket has a slot, and all are gathered before the first use, in the same order on all ranks.
    """

    def __init__(self, stages: Sequence[frozenset[int]], at_once: bool = False) -> None:
        self._stages, self._at_once = stages, at_once
        self.slots = len(stages) if at_once else min(SLOTS, len(stages))
        self._begin()
        self._first = NONE

    def _begin(self) -> None:
        self._held = [NONE] * self.slots
        self._current = NONE, FORWARD

    def slot(self, b: int) -> int:
        """Returns the slot of bucket b."""
        return b % self.slots

    def holds(self, b: int) -> bool:
        """Returns True if bucket b is in its slot, or is being gathered into it."""
        return self._held[self.slot(b)] == b

    def use(self, b: int, towards: int) -> tuple[list[int], list[int]]:
        """Returns the buckets to gather when bucket b is used, before and after waiting for b: b
        itself unless it is there, then the next one in direction `towards` (FORWARD or
        BACKWARD)."""
        if self._current == (b, towards):
            return [], []
        self._current = b, towards
        if self._first == NONE:
            self._first = b
        if self._at_once:
            return self._missing(*range(self.slots)), []
        following = b + towards
        due, ahead = self._missing(b), list[int]()
        # prefetch only what a stage of this bucket uses too: others may run at another time
        if 0 <= following < len(self._stages) and self._stages[b] & self._stages[following]:
            ahead = self._missing(following)
        return due, ahead

    def updated(self) -> list[int]:
        """Forgets all buckets because their values have changed, and returns those to gather
        first: the first one used in the last step, or all of them."""
        self._begin()
        first, self._first = self._first, NONE
        if self._at_once:
            return self._missing(*range(self.slots))
        return self._missing(first) if first != NONE else []

    def _missing(self, *buckets: int) -> list[int]:
        """Returns those of the buckets that are not in their slots, and assigns these to them."""
        return [b for b in buckets if self._taken(b)]

    def _taken(self, b: int) -> bool:
        """Assigns bucket b to its slot; returns False if it was there."""
        was_held = self.holds(b)
        self._held[self.slot(b)] = b
        return not was_held
