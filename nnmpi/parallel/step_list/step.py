"""Computes a rank's list of a step; ranks with equal parts, as along dp, share it."""

from collections.abc import Sequence

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.gradients import with_scatters, with_sums
from nnmpi.parallel.step_list.values import with_values
from nnmpi.schedules.find import find
from nnmpi.schedules.lists.step_list import UPDATE, StepList, evaluation_list, lowered
from nnmpi.schedules.op import NONE, Kind, Op


def step_list(a: Arrangement, rank: int, micro: int) -> StepList:
    """Returns the operations that a rank carries out in a step of `micro` micro-batches."""
    if a.strategy.lists:
        return a.strategy.lists(a, rank, micro)
    return with_buckets(a, first_alike(a, rank), micro)


@cached
def first_alike(a: Arrangement, rank: int) -> int:
    """Returns the first rank at the same place along pp whose part of the model is like that of
    `rank`: their lists are equal."""
    held = a.model_on(rank)
    return next(r for r in a.mesh.group(a.replicas(rank)[0], "tp") if a.model_on(r) == held)


@cached
def with_buckets(a: Arrangement, rank: int, micro: int) -> StepList:
    """Returns the list of a step that sums gradients bucket by bucket."""
    chain, at = chain_of(a, rank), a.mesh.coordinates(rank)
    passes, ops = lowered(passes_of(a, micro)[at["pp"]], chain, a.config.recompute == "stage")
    scatters = a.store.scatters
    with_gradients = with_scatters if scatters else with_sums
    has_terms = bool(a.model_on(rank).slices_of(a.sharding.partial_gradients))
    totals = (*[Kind.TIES] * (scatters and bool(chain.tied)), *[Kind.TERMS] * has_terms)
    ends = (*map(Op, totals), *UPDATE)
    ops = (*with_gradients(ops, chain, a.config.overlap), *ends)
    room = 1 + max((op.slot for op in ops if op.kind is Kind.OPEN), default=NONE)
    return with_values(a, StepList(chain, passes, micro, ops, ends, scatters=scatters, room=room))


def evaluation(a: Arrangement, rank: int, micro: int) -> StepList:
    """Returns the operations of an evaluation in `micro` micro-batches."""
    return with_values(a, evaluation_list(chain_of(a, rank), micro, a.mesh.axes["pp"]))


@cached
def passes_of(a: Arrangement, micro: int) -> Sequence[Sequence[Op]]:
    """Returns the passes of whole stages for each rank along pp."""
    if a.strategy.passes:
        return [a.strategy.passes(micro)]
    pp = a.mesh.axes["pp"]
    return find(a.config.schedule).compute(pp, micro, len(a.stages) // pp)
