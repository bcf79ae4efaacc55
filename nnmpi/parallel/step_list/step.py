"""Computes the list of operations that a rank carries out in a step, from the arrangement of ranks.
Ranks along dp have equal lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.step_list.chain import Chain, chain_of
from nnmpi.parallel.step_list.gradients import with_scatters, with_sums
from nnmpi.parallel.step_list.op import NONE, Kind, Op
from nnmpi.parallel.step_list.passes import (
    units_of,
    with_messages,
    with_note,
    with_recomputed,
)
from nnmpi.parallel.step_list.values import first_buckets, value_slots, with_gathers
from nnmpi.schedules import op as schedules
from nnmpi.schedules import proof
from nnmpi.schedules.lowering import forward_passes
from nnmpi.schedules.placement import stages_of


@dataclass(frozen=True)
class StepList:
    """The operations that a rank carries out in a step (`ops`), and facts by which they are
    checked. A unit is a part of a stage, usually a layer; a slot is memory that buckets share in
    turn.

    passes    the passes of units in the order of the schedule, which `ops` must keep
    slots     a dict: bucket -> the slot of its parameters; empty without ZeRO
    begins    the buckets whose gathers are in progress when a step begins
    scatters  True if gradients are reduce-scattered in each backward pass of a stage (ZeRO 2 and 3)
    room      the number of slots for gradients, if they are scattered
    totals    kinds of sums over other axes than dp (TIES, TERMS) that must come before the update
    notes     how often the losses of the passes since the last NOTE are noted
    walk      makes the check of operations that only this strategy has, such as reads from disk;
              None: there are none. It is called with each operation in order, and returns an error
              text, or "" if the operation is right
    """

    chain: Chain
    passes: tuple[Op, ...]
    slots: Mapping[int, int]
    begins: tuple[int, ...]
    scatters: bool
    room: int
    totals: tuple[Kind, ...]
    ops: tuple[Op, ...]
    notes: int = 1
    walk: Callable[["StepList"], Callable[[Op], str]] | None = None


def step_list(a: Arrangement, rank: int, micro: int) -> StepList:
    """Returns the operations that a rank carries out in a step of `micro` micro-batches."""
    if a.strategy.lists:
        made: StepList = a.strategy.lists(a, rank, micro)
        return made
    return with_buckets(a, rank, micro)


def list_of_batch(a: Arrangement, rank: int) -> StepList:
    """Returns the operations that a rank carries out in a step over a whole batch."""
    return step_list(a, rank, len(micro_batches(a, rank, a.config.batch_size)))


def with_buckets(a: Arrangement, rank: int, micro: int) -> StepList:
    """Returns the operations of a rank in a step in which gradients are summed bucket by bucket, as
    most strategies do."""
    chain, at = chain_of(a, rank), a.mesh.coordinates(rank)
    passes = [*units_of(_schedule(a, micro)[at["pp"]], chain)]
    ops = [*with_messages(passes, chain)]
    if a.config.recompute == "stage":
        passes, ops = ([*with_recomputed(row, chain)] for row in (passes, ops))
    scatters = a.store.scatters
    with_gradients = with_scatters if scatters else with_sums
    has_terms = bool(a.model_on(rank).slices_of(a.sharding.partial_gradients))
    totals = (*[Kind.TIES] * (scatters and bool(chain.tied)), *[Kind.TERMS] * has_terms)
    ops = [*with_gradients(with_note(ops), chain, a.config.overlap)]
    ops += map(Op, (*totals, Kind.AGREE, Kind.APPLY))
    room = 1 + max((op.slot for op in ops if op.kind is Kind.OPEN), default=NONE)
    slots = value_slots(a, chain)
    ops = [*with_gathers(ops, chain, slots)] if slots else ops
    begins = first_buckets(chain, slots) if slots else ()
    made = (*passes,), slots, begins, scatters, room, totals, (*ops,)
    return StepList(chain, *made)


def evaluation(a: Arrangement, rank: int, micro: int) -> list[Op]:
    """Returns the operations that a rank carries out to evaluate a batch in `micro`
    micro-batches."""
    chain, at, place = chain_of(a, rank), a.mesh.coordinates(rank)["pp"], a.division.place
    passes = forward_passes(stages_of(place, at), micro, max(place) + 1)
    ops, slots = [*with_messages(units_of(passes, chain), chain)], value_slots(a, chain)
    return [*with_gathers(ops, chain, slots)] if slots else ops


@cached
def _schedule(a: Arrangement, micro: int) -> Sequence[Sequence[schedules.Op]]:
    """Returns, for each rank along pp, the forward and backward passes of its stages in the order
    of the pipeline schedule, without messages."""
    if a.strategy.passes:
        return [a.strategy.passes(micro)]
    pp = a.mesh.axes["pp"]
    return proof.find(a.config.schedule).compute(pp, micro, len(a.stages) // pp)
