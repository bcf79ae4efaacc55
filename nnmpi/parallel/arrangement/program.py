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

    Bucket b always uses slot b mod SLOTS; `stages` are the stages that use each bucket. The store
    that follows this plan is in `parallel/stores/weight_slots.py`.
    """

    def __init__(self, stages: Sequence[frozenset[int]]) -> None:
        self._stages = stages
        self._begin()
        self._first = NONE

    def _begin(self) -> None:
        self._held = [NONE] * min(SLOTS, len(self._stages))
        self._current = NONE, FORWARD

    def holds(self, b: int) -> bool:
        """Returns True if bucket b is in its slot, or is being gathered into it."""
        return self._held[b % SLOTS] == b

    def use(self, b: int, towards: int) -> list[int]:
        """Returns the buckets to gather when bucket b is used: b itself unless it is there, and the
        next one in direction `towards` (FORWARD or BACKWARD)."""
        if self._current == (b, towards):
            return []
        following = b + towards
        wanted = [b]
        # prefetch only what a stage of this bucket uses too: others may run at another time
        if 0 <= following < len(self._stages) and self._stages[b] & self._stages[following]:
            wanted.append(following)
        self._current = b, towards
        if self._first == NONE:
            self._first = b
        return [k for k in wanted if self._taken(k)]

    def updated(self) -> list[int]:
        """Forgets all buckets because their values have changed, and returns the one to gather
        first: the first one used in the last step."""
        self._begin()
        first, self._first = self._first, NONE
        return [first] if first != NONE and self._taken(first) else []

    def _taken(self, b: int) -> bool:
        """Assigns bucket b to its slot; returns False if it was there."""
        was_held = self.holds(b)
        self._held[b % SLOTS] = b
        return not was_held
