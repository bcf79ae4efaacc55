"""The strategy for ranks that have too little memory for a step (--memory): each has the whole
model, with each unit as a stage, and runs the passes of the stages one after the other."""

from dataclasses import replace
from functools import partial

from nnmpi.addons.swapping.on_disk import OnDisk, with_swaps
from nnmpi.addons.swapping.placement import Placement, Placements, placements_of
from nnmpi.addons.swapping.swapper import Swapper
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrangement import Arrangement, StrategyKind
from nnmpi.parallel.executor_strategy import (
    ExecutorStrategy,
    executor_of,
    slowed,
    undo_of,
    update_of,
)
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.replicas.replicas import replicas
from nnmpi.parallel.step_list.step import with_buckets
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import Kind, Op


def kind(plan: Placements) -> StrategyKind:
    """Returns the StrategyKind of training with placements of activations."""
    return StrategyKind(
        "replicas",
        make=make,
        passes=partial(_passes, plan),
        lists=partial(_list, plan),
        recomputes=plan.recomputes,
        of_stages=True,
        chosen=plan,
        kept=plan.memory - plan.state,
    )


def _passes(plan: Placements, micro: int) -> list[Op]:
    """Returns the passes of one rank that has all stages, in a step of `micro` micro-batches. For 1
    micro-batch and 2 stages, the second recomputed: F0 F1 RECOMPUTE1 B1 B0, each with its stage."""
    passes, n = list[Op](), len(plan.choice)
    for m in range(micro):
        passes += [Op(Kind.F, m, s) for s in range(n)]
        for s in reversed(range(n)):
            if plan.choice[s] is Placement.RECOMPUTE:
                passes.append(Op(Kind.RECOMPUTE, m, s))
            passes.append(Op(Kind.B, m, s))
    return passes


def _list(plan: Placements, a: Arrangement, rank: int, micro: int) -> StepList:
    step = with_buckets(a, rank, micro)
    ops = (*with_swaps(plan.swapped, step.ops, step.chain),)
    return replace(step, ops=ops, walk=partial(OnDisk, plan.swapped))


class SwappingStrategy(ExecutorStrategy):
    """The strategy of a rank that swaps activations by a thread."""

    swapper: Swapper

    def leave(self) -> None:
        self.swapper.close()


def make(layout: Layout, spec: TrainSpec) -> SwappingStrategy:
    """Builds a rank's strategy that swaps activations; every rank calls it."""
    plan, dp = _plan(spec), layout.axis["dp"]
    swapper = all_or_none(layout.all, lambda: Swapper(plan, _takes(spec)))
    parts = replicas(layout, spec)
    config = spec.arrangement.config
    sync, stats = slowed(config, dp.rank, dp.size, parts.sync, parts.batch_stats)
    with swapper.allocating_state():
        optimizer = spec.optimizer(parts.store.parameters)
    parts.store.keep_state(optimizer)
    update = update_of(parts.store, optimizer, layout, spec)
    last = undo_of(layout, "step", update, spec.part.model)
    ends, hooks = swapper.with_state(update.ends), swapper.hooks
    executor = executor_of(layout, spec, sync, ends, stats, swapper.channels, hooks)
    run = executor.steps, executor.evaluate
    made = SwappingStrategy(parts, *run, optimizer, layout, spec, last)
    made.swapper = swapper
    return made


def _plan(spec: TrainSpec) -> Placements:
    plan = placements_of(spec.arrangement)
    assert plan is not None
    return plan


def _takes(spec: TrainSpec) -> list[bool]:
    """Returns which boundaries' tensors require a gradient."""
    return [edge.requires_grad for (edge,) in spec.part.boundaries]
