"""Trains data-parallel replicas in rounds: within a round, the replicas make steps alone; at its
end their parameters are made equal.

    local, gossip   begin   after_step  after_step ...   meet
    round           ├────── H steps of the optimizer ───────┤

A round ends at each multiple of H steps of the run, and at the end of an epoch. The run treats a
round as one step, so evaluations, checkpoints and other ranks see equal replicas. Each replica
keeps the state of its own optimizer.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, Protocol

import numpy as np

from nnmpi.addons.averaging.gossip import Gossiping
from nnmpi.addons.averaging.on_paper import AVERAGES, exchanges
from nnmpi.addons.averaging.outer import OuterOptimizer
from nnmpi.data import Loader, StepBatch
from nnmpi.data.loader import BatchSplit
from nnmpi.io.output.messages import EventTexts
from nnmpi.optim import Optimizer
from nnmpi.options.amounts import plural
from nnmpi.parallel.arrangement.arrangement import Arrangement, StrategyKind
from nnmpi.parallel.executor_strategy import (
    Evaluation,
    ExecutorStrategy,
    StrategyParts,
    executor_of,
    slowed,
    undo_of,
    update_of,
)
from nnmpi.parallel.layout import Layout, duplicate
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.replicas.replicas import check_parts, pipelined, replicas
from nnmpi.parallel.step.executor import Executor, GradientSync, StepResult, StepState
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec, Undo
from nnmpi.schedules.op import Kind


class Averaging(Protocol):
    """The interface by which a replica exchanges parameters, in a round and at its end."""

    def begin(self) -> None:
        """Begins a round: sets this replica's own values, and keeps what exchanges need."""

    def after_step(self, number: int) -> None:
        """Makes the exchanges that are due after a step of a round; `number`, from 1 to H, is that
        of the step in its period of H steps, the value of --every."""

    def poll(self) -> None:
        """Makes progress with exchanges of replicas; called often in a step."""

    def meet(self) -> None:
        """Ends a round: replicas are equal until the next one begins."""


class RoundUndo(Undo, Protocol):
    """The interface of an object that undoes a round if another rank is lost, or makes it final if
    all ranks have ended it (`recovery/parallel/round_undo.py`)."""

    def begin(self) -> None:
        """Copies all state that a round of steps changes, so that the round can be undone."""

    def end(self, step: int) -> None:
        """Records that this rank has ended a round with step `step`."""


AVERAGING: dict[str, Callable[[Layout, TrainSpec, LocalStore, Optimizer], Averaging]] = {
    "local": OuterOptimizer,
    "gossip": Gossiping,
}
"""The class for the exchanges of replicas, by --sync."""


class Rounds:
    """Makes a replica's steps in rounds. A round yields one StepResult, whose loss is the sum over
    its steps and over all replicas. `last` undoes the last round if a rank is lost in it, or is
    None."""

    def __init__(
        self,
        executor: Executor,
        averaging: Averaging,
        layout: Layout,
        spec: TrainSpec,
        last: RoundUndo | None = None,
    ) -> None:
        self._executor, self._averaging = executor, averaging
        self._all, self._dp = layout.all, layout.axis["dp"]
        self._every, self._total = spec.arrangement.config.every, spec.control.steps
        self.last = last

    def steps(
        self, loads: Iterable[StepBatch], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """Makes this replica's steps on the batches `loads`, from `start` to the end of the epoch
        or of the run, and yields one result for each round."""
        count, n = min(batches - start.batch, self._total() - start.step), self._dp.size
        # the mean over the replicas of their gradients is the gradient of the batch
        parts = (load._replace(divisor=load.divisor / n) for load in islice(loads, count))
        made = list[StepResult]()
        with closing(self._executor.steps(parts, start, batches)) as steps:
            for number in range(1, count + 1):
                if not made:
                    self._begin()
                made.append(next(steps))
                in_period = (made[-1].state.step - 1) % self._every + 1
                self._averaging.after_step(in_period)
                if in_period == self._every or number == count:
                    yield self._met(made)
                    made = []

    def _begin(self) -> None:
        if self.last is not None:
            self.last.begin()
        self._averaging.begin()

    def _met(self, made: list[StepResult]) -> StepResult:
        """Ends a round; returns the sums over its steps and replicas."""
        last, loss = made[-1], sum(result.loss for result in made)
        row = np.array([loss, last.request, sum(not result.updated for result in made)])
        with waiting("agree"):
            self._dp.all_reduce(row, "doubling")
        self._averaging.meet()
        if self.last is not None:
            self.last.end(last.state.step)
            self._all.barrier()
            self.last.finish(row.tolist())
        loss, request, skipped = row.tolist()
        samples = sum(result.samples for result in made)
        divisor = self._dp.size * sum(result.divisor for result in made)
        return StepResult(last.state, samples, divisor, loss, request, not skipped)


def make(layout: Layout, spec: TrainSpec) -> ExecutorStrategy:
    """Returns the strategy for replicas that are averaged; every rank calls it."""
    parts, optimizer, rounds, executor = _made(layout, spec)
    run = rounds.steps, executor.evaluate
    return ExecutorStrategy(parts, *run, optimizer, layout, spec, rounds.last)


def held(layout: Layout, spec: TrainSpec) -> tuple[LocalStore, Optimizer]:
    """Returns the store and the optimizer of a rank, with the state that averages add to it."""
    parts = _parts(layout, spec)
    optimizer = spec.optimizer(parts.store.parameters)
    AVERAGING[spec.arrangement.config.sync](layout, spec, parts.store, optimizer)
    return parts.store, optimizer


FACTS = {
    "local": (
        *("every", "fragments", "apply_after", "outer_dtype"),
        *("outer", "outer_lr", "outer_momentum"),
    ),
    "gossip": ("every", "graph"),
}
"""The options that describe the exchanges of replicas, by --sync."""


def averaging_facts(a: Arrangement) -> dict[str, Any]:
    """Returns start event fields on how replicas exchange parameters."""
    return {name: getattr(a.config, name) for name in FACTS[a.config.sync]} | {
        "allreduce": a.algorithm
    }


def phrases(e: dict[str, Any]) -> Iterator[str]:
    """Yields phrases on exchanges, from the fields of `averaging_facts`."""
    rule = f"gossip on a {e['graph']} graph" if "graph" in e else f"outer {e['outer']}"
    yield f"replicas averaged every {plural(e['every'], 'step')}, {rule}"


def check_of(layout: Layout, spec: TrainSpec) -> Callable[[Loader], None]:
    """Returns a check that a loader's micro-batches have more than one sample for BatchNorm, whose
    statistics each replica computes alone; it raises an error otherwise."""
    n, micro = layout.axis["dp"].size, spec.arrangement.config.micro_batches
    cuts = [BatchSplit(micro, n, r) for r in range(n)]
    into = f"{n} x {micro} parts (replicas x micro-batches)"
    remedy = "fewer replicas, another --batch-size or --sync bsp"
    return lambda loader: check_parts(
        spec.task.model, loader, spec.control.steps(), cuts, into, remedy
    )


def _parts(layout: Layout, spec: TrainSpec) -> StrategyParts:
    return (pipelined if spec.arrangement.config.pp > 1 else replicas)(layout, spec)


def _made(layout: Layout, spec: TrainSpec) -> tuple[StrategyParts, Optimizer, Rounds, Executor]:
    config, dp, parts = spec.arrangement.config, layout.axis["dp"], _parts(layout, spec)
    if config.pp == 1:  # replicas are equal after a round, so they share the test samples
        cut = BatchSplit(config.micro_batches, dp.size, dp.rank)
        parts = parts._replace(evaluation=Evaluation(cut, layout.all, layout.counts_loss))
    facts = averaging_facts(spec.arrangement) if dp.size > 1 else {}
    parts = parts._replace(describe={**parts.describe, **facts}, check=check_of(layout, spec))
    optimizer = spec.optimizer(parts.store.parameters)
    ends = update_of(parts.store, optimizer, layout, spec).ends
    beside = layout
    if config.apply_after and dp.size > 1:
        beside, parts = _in_background(layout, parts, spec)
    averaging = AVERAGING[config.sync](beside, spec, parts.store, optimizer)
    if config.apply_after:
        parts = parts._replace(sync=PolledSync(parts.sync, averaging.poll))
    sync, stats = slowed(config, dp.rank, dp.size, parts.sync, parts.batch_stats)
    executor = executor_of(layout, spec, sync, ends, stats)
    scaler = [spec.task.scaler] if spec.task.scaler else []
    last: RoundUndo | None = undo_of(layout, "round", optimizer, spec.part.model, *scaler)
    return parts, optimizer, Rounds(executor, averaging, layout, spec, last), executor


class PolledSync(GradientSync):
    """A GradientSync that also moves exchanges of replicas when polled."""

    def __init__(self, sync: GradientSync, poll: Callable[[], None]) -> None:
        self._sync, self._poll, self.units = sync, poll, sync.units
        self.ops, self.begin, self.note = sync.ops, sync.begin, sync.note  # type: ignore

    def poll(self) -> None:
        self._sync.poll()
        self._poll()


def _in_background(
    layout: Layout, parts: StrategyParts, spec: TrainSpec
) -> tuple[Layout, StrategyParts]:
    """Returns `layout` and `parts` with a new Comm along dp for exchanges of parameters beside
    steps, freed with the strategy of `parts`. Nothing else may be sent on it. If the arrangement
    says so, a thread makes progress with its messages."""
    comm = duplicate(layout.axis["dp"])
    has_thread = spec.arrangement.progress[layout.all.rank] == "thread"
    progress = comm.progress_thread if has_thread else parts.progress
    parts = parts._replace(comms=[*parts.comms, comm], progress=progress)
    return layout._replace(axis={**layout.axis, "dp": comm}), parts


TEXTS = EventTexts(sync=phrases)


KIND = StrategyKind(
    "averaging",
    make=make,
    held=held,
    result_steps=lambda config: config.every,
    averages=AVERAGES,
    exchanges={Kind.APPLY: exchanges},
)
"""The strategy with averaged replicas; it yields one result per round of steps."""
