"""StepList: the list of operations of one rank, with the facts by which it is proved; PassFacts:
what follows from it for the passes of its stages."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """The operations that a rank carries out in a step (`ops`), and facts to check them by.

    passes    the passes of units in the order of the schedule, which `ops` must keep
    ends      the operations that end the step: sums over other axes than dp (TIES, TERMS), AGREE
              and APPLY; if an update follows each micro-batch, these; none in an evaluation
    slots     a dict: bucket -> the slot of its parameters; empty without ZeRO
    begins    the buckets whose gathers are in progress when a step begins
    scatters  True if gradients are reduce-scattered in each backward pass of a stage (ZeRO 2 and 3)
    room      the number of slots for gradients, if they are scattered
    notes     how often the losses of the passes since the last NOTE are noted
    walk      makes the check of operations that only this strategy has: it is called with each
              operation in order, and returns an error text, or "" if the operation is right
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
    """Returns the passes of a rank's units, given those of its whole stages in the order of a
    schedule; and the same with messages between stages, and NOTE.

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


class BackwardKind(NamedTuple):
    """Facts about a backward pass that are known before it begins.

    adds       True if it adds to gradients that another micro-batch has computed in this step
    halves     True if it runs in two halves: gradients of inputs (I), then of parameters (W)
    in_flight  how many micro-batches of its stage wait for their backward pass at the same time
    """

    adds: bool
    halves: bool
    in_flight: int


class PassFacts(NamedTuple):
    """Facts about the passes of stages in a step, which follow from its operations.

    kinds        facts about each backward pass, by (stage, micro-batch)
    recomputed   (stage, micro-batch) of each forward pass that is repeated
    """

    kinds: Mapping[tuple[int, int], BackwardKind]
    recomputed: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, ops: Sequence[Op], units: Mapping[int, Sequence[int]]) -> "PassFacts":
        """Returns the facts for a step of these operations; `units` has those of each stage."""
        # one operation stands for each pass of a stage: that of its first unit
        passes = [op for op in ops if op.stage in units and op.at == units[op.stage][0]]
        backward = [op for op in passes if op.kind in (Kind.B, Kind.W)]
        first = {op.stage: op.micro for op in reversed(backward)}
        # the gradients of each pass have memory of their own: they are scattered among ranks
        scatters = any(op.kind is Kind.OPEN for op in ops)
        halved = {(op.stage, op.micro) for op in passes if op.kind is Kind.I}
        recomputed = frozenset((op.stage, op.micro) for op in passes if op.kind is Kind.RECOMPUTE)
        most = _most_in_flight(passes, recomputed)
        kinds = {
            (s, m): BackwardKind(first[s] != m and not scatters, (s, m) in halved, most[s])
            for s, m in ((op.stage, op.micro) for op in backward)
        }
        return cls(kinds, recomputed)


def _most_in_flight(passes: Iterable[Op], recomputed: frozenset[tuple[int, int]]) -> Counter[int]:
    """Returns how many micro-batches of each stage wait for their backward pass at most."""
    flying, most = Counter[int](), Counter[int]()
    for op in passes:
        begins = Kind.RECOMPUTE if (op.stage, op.micro) in recomputed else Kind.F
        flying[op.stage] += (op.kind is begins) - (op.kind in (Kind.B, Kind.W))
        most[op.stage] = max(most[op.stage], flying[op.stage])
    return most
