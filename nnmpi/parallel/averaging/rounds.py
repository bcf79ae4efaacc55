"""Rounds: replicas along dp make steps of their own, and at the end of a round all are equal.

    local, gossip   begin   after_step  after_step ...   meet
    round           ├────── H steps of the optimizer ───────┤

A round is H steps; it also ends with an epoch. To the run a round is one step, so evaluations,
checkpoints and other ranks see equal replicas. Each replica keeps the state of its own optimizer.
"""

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, Protocol

import numpy as np

from nnmpi.data import Load
from nnmpi.data.loader import BatchSplit
from nnmpi.optim import Optimizer
from nnmpi.options.config import Config
from nnmpi.parallel.averaging.gossip import Gossiping
from nnmpi.parallel.averaging.outer import OuterOptimizer
from nnmpi.parallel.checks.slow_ranks import slowed
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.replicas.replicas import pipelined, replicas
from nnmpi.parallel.step.executor import Executor, StepResult, StepState
from nnmpi.parallel.step.last_round import LastRound
from nnmpi.parallel.strategy import (
    Evaluation,
    ExecutorStrategy,
    RankStep,
    StrategyParts,
    TrainSpec,
    executor_of,
    update_of,
)


class Averaging(Protocol):
    """The exchanges of a replica in a round."""

    def begin(self) -> None:
        """Begins a round."""

    def after_step(self) -> None:
        """Follows each step of a round."""

    def meet(self) -> None:
        """Ends a round: all replicas have equal values after it."""


AVERAGING: dict[str, Callable[[Layout, TrainSpec, Optimizer], Averaging]] = {
    "local": OuterOptimizer,
    "gossip": Gossiping,
}
"""The exchanges of replicas, by --sync."""


class Rounds:
    """The steps of a replica, yielded a round at a time: sums over all replicas.

    last   undoes the last round if a rank is lost within it
    """

    def __init__(
        self,
        executor: Executor,
        averaging: Averaging,
        layout: Layout,
        spec: TrainSpec,
        last: LastRound | None = None,
    ) -> None:
        self._executor, self._averaging, self._dp = executor, averaging, layout.axis["dp"]
        self._every, self._total = spec.arrangement.config.every, spec.control.steps
        self.last = last

    def steps(
        self, loads: Iterable[Load], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """Yields a result for each round from `start` to the end of the epoch, or of the run."""
        count = min(batches - start.batch, self._total() - start.step)
        made, divisor, state = list[StepResult](), 0.0, start
        for number, load in enumerate(islice(loads, count), 1):
            if not made:
                self._begin()
            # the mean over the replicas of their gradients is the gradient of the batch
            of_replica = load._replace(divisor=load.divisor / self._dp.size)
            made.append(self._executor.run(of_replica, state, batches))
            self._averaging.after_step()
            divisor, state = divisor + load.divisor, made[-1].state
            if state.step % self._every == 0 or number == count:
                yield self._met(made, divisor)
                made, divisor = [], 0.0

    def _begin(self) -> None:
        if self.last is not None:
            self.last.begin()
        self._averaging.begin()

    def _met(self, made: list[StepResult], divisor: float) -> StepResult:
        """Ends a round; returns the sums over its steps and all replicas."""
        last, loss = made[-1], sum(result.loss for result in made)
        row = np.array([loss, last.request, sum(not result.updated for result in made)])
        with waiting("agree"):
            self._dp.all_reduce(row, "doubling")
        self._averaging.meet()
        if self.last is not None:
            self.last.end(last.state.step)
        loss, request, skipped = row.tolist()
        samples = sum(result.samples for result in made)
        return StepResult(last.state, samples, divisor, loss, request, not skipped)


def make(layout: Layout, spec: TrainSpec) -> ExecutorStrategy:
    """Returns the strategy in which each rank along dp has a replica, or a part of one; every rank
    calls it."""
    parts, optimizer, rounds, executor = _made(layout, spec)
    run = rounds.steps, executor.evaluate
    return ExecutorStrategy(parts, *run, optimizer, layout, spec, rounds.last)


def rank_step(layout: Layout, spec: TrainSpec) -> RankStep:
    """Returns a round of one step of a rank."""
    parts, optimizer, rounds, _ = _made(layout, spec)

    def run(load: Load, state: StepState, batches: int) -> StepResult:
        return next(rounds.steps([load], state, state.batch + 1))

    return RankStep(parts.store, optimizer, run)


def averaging_facts(config: Config) -> dict[str, Any]:
    """Returns the fields of the start event that describe what replicas exchange."""
    if config.sync == "gossip":
        return {"graph": config.graph}
    return {"outer": config.outer, "outer_lr": config.outer_lr}


def _made(layout: Layout, spec: TrainSpec) -> tuple[StrategyParts, Optimizer, Rounds, Executor]:
    config, dp = spec.arrangement.config, layout.axis["dp"]
    make_parts = pipelined if config.pp > 1 else replicas
    parts = make_parts(layout, spec)
    if config.pp == 1:  # replicas are equal after a round, so they share the test samples
        cut = BatchSplit(1, dp.size, dp.rank)
        parts = parts._replace(evaluation=Evaluation(cut, layout.all, layout.counts_loss))
    facts = {"every": config.every, **averaging_facts(config)}
    parts = parts._replace(describe={**parts.describe, **facts})
    optimizer = spec.optimizer(parts.store.parameters)
    apply = update_of(parts.store, optimizer, layout, spec).apply
    sync, stats = slowed(config, dp.rank, dp.size, parts.sync, parts.batch_stats)
    executor = executor_of(layout, spec, sync, apply, stats)
    averaging = AVERAGING[config.sync](layout, spec, optimizer)
    last = LastRound(optimizer, spec.part.model) if layout.all.fault_tolerant else None
    return parts, optimizer, Rounds(executor, averaging, layout, spec, last), executor
