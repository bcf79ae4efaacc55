"""StepList: the list of operations of one rank, with the facts by which it is proved."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.passes import (
    forward_passes,
    units_of,
    with_messages,
    with_note,
    with_recomputed,
)
from nnmpi.schedules.op import Kind, Op

UPDATE = Op(Kind.AGREE), Op(Kind.APPLY)
"""The operations with which most steps end."""


class ScheduleError(ValueError):
    """Raised because the lists of operations of ranks are incomplete or cannot be carried out."""


@dataclass(frozen=True)
class StepList:
    """The operations that a rank carries out in a step (`ops`), and facts by which they are
    checked. A unit is a part of a stage, usually a layer; a slot is memory that buckets share in
    turn.

    passes    the passes of units in the order of the schedule, which `ops` must keep
    micro     the number of micro-batches
    ends      the operations that end the step: sums over other axes than dp (TIES, TERMS), AGREE
              and APPLY; if an update follows each micro-batch, these; none in an evaluation
    slots     a dict: bucket -> the slot of its parameters; empty without ZeRO
    begins    the buckets whose gathers are in progress when a step begins
    scatters  True if gradients are reduce-scattered in each backward pass of a stage (ZeRO 2 and 3)
    room      the number of slots for gradients, if they are scattered
    notes     how often the losses of the passes since the last NOTE are noted
    walk      makes the check of operations that only this strategy has, such as reads from disk;
              None: there are none. It is called with each operation in order, and returns an error
              text, or "" if the operation is right
    """

    chain: Chain
    passes: tuple[Op, ...]
    micro: int
    ops: tuple[Op, ...]
    ends: tuple[Op, ...] = UPDATE
    slots: Mapping[int, int] = field(default_factory=dict)
    begins: tuple[int, ...] = ()
    scatters: bool = False
    room: int = 0
    notes: int = 1
    walk: Callable[["StepList"], Callable[[Op], str]] | None = None

    @property
    def overlaps(self) -> bool:
        """True if steps overlap: an update follows each micro-batch."""
        return any(op.micro >= 0 for op in self.ends)


def lowered(
    passes: Iterable[Op], chain: Chain, recompute: bool
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Returns two tuples: the passes of units of a rank, given the passes of its whole stages in
    the order of a schedule; and the same with messages between stages, and NOTE.

    recompute   a backward pass repeats its forward pass first, unless that came just before
    """
    of_units = [*units_of(passes, chain)]
    ops = [*with_messages(of_units, chain)]
    if recompute:
        of_units, ops = ([*with_recomputed(row, chain)] for row in (of_units, ops))
    return (*of_units,), (*with_note(ops),)


def evaluation_list(chain: Chain, m: int, p: int) -> StepList:
    """Returns the list of one of p ranks in an evaluation, without gathers."""
    passes = (*units_of(forward_passes([*chain.of_stage], m, p), chain),)
    return StepList(chain, passes, m, (*with_messages(passes, chain),), ends=())
