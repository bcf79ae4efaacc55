"""Local steps: replicas make H steps alone; then an outer optimizer applies their mean change.

    replica 0   theta ─ H steps ─► theta 0 ─┐
    replica 1   theta ─ H steps ─► theta 1 ─┴─► g = mean(theta - theta r)   ─► theta, on all

    sgd         theta -= lr g                        lr 1: the mean of the replicas
    nesterov    m = mu m + g,  theta -= lr (g + mu m)

A round is H steps and their outer step; it also ends with an epoch. To the run a round is one step:
all replicas are equal after it, so evaluations, checkpoints and other ranks can use any of them.
Each replica keeps the state of its inner optimizer. Stich 2019; Douillard et al. 2023 (DiLoCo).
"""

from collections.abc import Callable, Generator, Iterable
from itertools import islice

import numpy as np

from nnmpi.data import Load
from nnmpi.data.loader import BatchSplit
from nnmpi.optim import Optimizer
from nnmpi.optim.optimizer import ReplicaState
from nnmpi.parallel.averaging.means import ReplicaMean, average_buffers
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

MOMENTUM = "outer_momentum"
"""The name of the outer optimizer's state, equal on all replicas."""


class OuterOptimizer:
    """Applies the mean change of all replicas to the values that they began a round with."""

    def __init__(self, layout: Layout, spec: TrainSpec, optimizer: Optimizer) -> None:
        config = spec.arrangement.config
        self._lr, self._mu = config.outer_lr, config.outer_momentum
        self._has_momentum = config.outer == "nesterov" and self._mu > 0
        self._mean = ReplicaMean(layout.axis["dp"], spec.task.on, optimizer)
        self._optimizer, self._dp = optimizer, layout.axis["dp"]
        self._model, self._algorithm = spec.part.model, spec.arrangement.algorithm
        optimizer.of_replica = ReplicaState(self._dp.rank, optimizer.sums)
        if self._has_momentum:
            optimizer.add_state(MOMENTUM)

    def begin(self) -> None:
        """Keeps the values that a round begins with."""
        self._start = self._mean.values()

    def step(self) -> None:
        """Ends a round: replaces the values of all replicas by the result of an outer step."""
        start = self._start
        g = start - self._mean.values()
        with waiting("sums"):
            self._mean.of(g, self._algorithm)
            average_buffers(self._dp, self._model)
        # no message from here on: a rank that is lost leaves the others with equal values
        if self._has_momentum:
            m = self._optimizer.state[MOMENTUM]
            m *= self._mu
            m += g
            g += self._mu * m
        start -= self._lr * g
        self._mean.assign(start)


class LocalSteps:
    """The steps of a replica, yielded a round at a time: sums over all replicas."""

    def __init__(
        self,
        executor: Executor,
        outer: OuterOptimizer,
        layout: Layout,
        spec: TrainSpec,
        last: LastRound | None = None,
    ) -> None:
        self._executor, self._outer, self._dp = executor, outer, layout.axis["dp"]
        self._every, self._steps = spec.arrangement.config.every, spec.control.steps
        self.last = last

    def steps(
        self, loads: Iterable[Load], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """Yields a result for each round from `start` to the end of the epoch, or of the run."""
        count = min(batches - start.batch, self._steps() - start.step)
        made = list[StepResult]()
        state, divisors = start, list[float]()
        for number, load in enumerate(islice(loads, count), 1):
            if not made:
                self._outer.begin()
                if self.last is not None:
                    self.last.begin()
            made.append(self.alone(load, state, batches))
            divisors.append(load.divisor)
            state = made[-1].state
            if state.step % self._every == 0 or number == count:
                yield self._met(made, sum(divisors))
                made, divisors = [], []

    def alone(self, load: Load, state: StepState, batches: int) -> StepResult:
        """Makes one step of this replica, on its part of a batch; the mean over the replicas of
        their gradients is that of the batch."""
        own = load._replace(divisor=load.divisor / self._dp.size)
        return self._executor.run(own, state, batches)

    def _met(self, made: list[StepResult], divisor: float) -> StepResult:
        """Makes the outer step; returns the sums over the steps of a round and all replicas."""
        last, loss = made[-1], sum(result.loss for result in made)
        row = np.array([loss, last.request, sum(not result.updated for result in made)])
        with waiting("agree"):
            self._dp.all_reduce(row, "doubling")
        self._outer.step()
        if self.last is not None:
            self.last.end(last.state.step)
        loss, request, skipped = row.tolist()
        samples = sum(result.samples for result in made)
        return StepResult(last.state, samples, divisor, loss, request, not skipped)


def local(layout: Layout, spec: TrainSpec) -> ExecutorStrategy:
    """Returns the strategy of local steps, in which each rank along dp has a replica, or a part of
    one; every rank calls it."""
    parts, optimizer, rounds, executor = _rounds(layout, spec)
    run = rounds.steps, executor.evaluate
    return ExecutorStrategy(parts, *run, optimizer, layout, spec, rounds.last)


def rank_step(layout: Layout, spec: TrainSpec) -> RankStep:
    """Returns a round of one step of a rank."""
    parts, optimizer, rounds, _ = _rounds(layout, spec)

    def run(load: Load, state: StepState, batches: int) -> StepResult:
        return next(rounds.steps([load], state, state.batch + 1))

    return RankStep(parts.store, optimizer, run)


def _rounds(
    layout: Layout, spec: TrainSpec
) -> tuple[StrategyParts, Optimizer, LocalSteps, Executor]:
    config = spec.arrangement.config
    make: Callable[[Layout, TrainSpec], StrategyParts] = pipelined if config.pp > 1 else replicas
    dp, parts = layout.axis["dp"], make(layout, spec)
    evaluation = parts.evaluation
    if config.pp == 1:  # replicas are equal after a round, so they share the test samples
        cut = BatchSplit(1, dp.size, dp.rank)
        evaluation = Evaluation(cut, layout.all, layout.counts_loss)
    facts = {"every": config.every, "outer": config.outer, "outer_lr": config.outer_lr}
    parts = parts._replace(evaluation=evaluation, describe={**parts.describe, **facts})
    optimizer = spec.optimizer(parts.store.parameters)
    apply = update_of(parts.store, optimizer, layout, spec).apply
    sync, stats = slowed(config, dp.rank, dp.size, parts.sync, parts.batch_stats)
    executor = executor_of(layout, spec, sync, apply, stats)
    outer = OuterOptimizer(layout, spec, optimizer)
    last = LastRound(optimizer, spec.part.model) if layout.all.fault_tolerant else None
    return parts, optimizer, LocalSteps(executor, outer, layout, spec, last), executor
