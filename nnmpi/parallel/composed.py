"""Composed: the strategy of ranks that all compute, from parts that differ."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.data import Loader
from nnmpi.data.loader import Cut
from nnmpi.metrics import Sums
from nnmpi.nn.passes import LOCAL, BatchStats
from nnmpi.optim import Optimizer
from nnmpi.parallel.arrangement.program import forward_ops, ops
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.entries import Entries
from nnmpi.parallel.model.parts import PartTable
from nnmpi.parallel.step.channels import Channels, Ports
from nnmpi.parallel.step.executor import NO_SYNC, Executor, GradientSync, StepResult, StepState
from nnmpi.parallel.step.update import Update
from nnmpi.parallel.stores import LocalStore
from nnmpi.parallel.strategy import TrainSpec


class Evaluation(NamedTuple):
    """Which samples of a test batch this rank evaluates, and the ranks that add up their sums."""

    cut: Cut
    comm: Comm
    counts: bool = True  # of ranks with the same sums, one counts them


class StrategyParts(NamedTuple):
    """In what strategies differ; `sync` and `batch_stats` are those of steps made together."""

    store: LocalStore
    cut: Cut  # of a training batch, into the micro-batches that this rank computes
    evaluation: Evaluation
    check: Callable[[Loader], None]  # refuses batches that cannot be cut
    describe: Mapping[str, Any]
    sync: GradientSync = NO_SYNC
    batch_stats: BatchStats = LOCAL
    outcome: Callable[[], dict[str, Any]] = dict  # called by every rank, before the store is closed
    comms: Sequence[Comm] = ()  # made for these parts
    progress: Callable[[], AbstractContextManager[None]] = nullcontext  # around the steps


class Composed:
    """Every rank runs an executor on its part of each batch."""

    position = None

    def __init__(
        self,
        parts: StrategyParts,
        executor: Executor,
        optimizer: Optimizer,
        layout: Layout,
        spec: TrainSpec,
    ) -> None:
        self.layout, self.optimizer = layout, optimizer
        self.entries = Entries.of_model(spec.task.model, layout.all, spec.part.held)
        self._parts, self._executor = parts, executor
        self._outcome: dict[str, Any] = {}
        self._fields, self._objective = spec.part.fields, spec.task.objective

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        parts = self._parts
        parts.check(loader)
        loads = loader.loads(start.epoch, parts.cut, start.batch, self._fields)
        with parts.progress(), closing(loads):
            yield from self._executor.steps(loads, start, len(loader))

    def evaluate(self, loader: Loader, step: int) -> Sums:
        how = self._parts.evaluation
        with self._parts.store.reading():
            found = self._executor.evaluate(loader.loads(0, how.cut, want=self._fields), step)
        found *= how.counts
        how.comm.all_reduce(found, "doubling")
        return self._objective.sums(found)

    def describe(self) -> dict[str, Any]:
        return dict(self._parts.describe)

    def outcome(self) -> dict[str, Any]:
        return self._outcome

    def close(self) -> None:
        self._outcome = self._parts.outcome()
        self._parts.store.close()
        for comm in self._parts.comms:
            comm.free()
        self.layout.free()


def synchronous(parts: StrategyParts, layout: Layout, spec: TrainSpec) -> Composed:
    """The strategy of ranks that make every step together."""
    a, control, part, rank = spec.arrangement, spec.control, spec.part, layout.all.rank
    channels = Channels(part.boundaries, part.stages, layout.axis["pp"], spec.recorder)
    optimizer = spec.optimizer(parts.store.parameters)
    update = Update(
        parts.store,
        optimizer,
        a.config.clip_norm,
        control.lr,
        layout,
        PartTable.of_model(spec.task.model, layout.model, part.held).counts,
        [p for p, _ in part.tied],
        spec.recorder,
    )
    executor = Executor(
        Ports.of(spec.task, part, channels),
        parts.sync,
        update.apply,
        control.stop,
        partial(ops, a, rank),
        partial(forward_ops, a, rank),
        parts.batch_stats,
        spec.recorder,
    )
    return Composed(parts, executor, optimizer, layout, spec)
