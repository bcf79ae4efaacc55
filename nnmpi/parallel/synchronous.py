"""Synchronous: the strategy of ranks that make every step together, from parts that differ."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.data import Loader
from nnmpi.data.loader import Cut, Fields
from nnmpi.metrics import Sums
from nnmpi.nn.passes import BatchStats
from nnmpi.optim import Optimizer
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.entries import Entries
from nnmpi.parallel.model.parts import PartTable
from nnmpi.parallel.step.evaluation import evaluate
from nnmpi.parallel.step.executor import Executor, GradientSync, Program
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.ports import NO_MESSAGES, Messages, Stage
from nnmpi.parallel.step.state import StepResult, StepState
from nnmpi.parallel.step.update import Update
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.schedules import forward_only


class Evaluation(NamedTuple):
    """Which samples of a test batch this rank evaluates, how, and the ranks that share them."""

    cut: Cut
    comm: Comm
    program: Program = forward_only
    counts: bool = True  # of ranks with the same sums, one counts them

    def sums(
        self,
        objective: Objective,
        stages: Mapping[int, Stage],
        loader: Loader,
        step: int,
        want: Fields,
        messages: Messages = NO_MESSAGES,
    ) -> Sums:
        """Loss and metrics over a split, the same on all ranks; every rank calls it."""
        loads = loader.loads(0, self.cut, want=want)
        found = evaluate(objective, stages, loads, step, self.program, messages) * self.counts
        self.comm.all_reduce(found, "doubling")
        return objective.sums(found)


class Parts(NamedTuple):
    """What a synchronous strategy consists of."""

    stages: Mapping[int, Stage]
    store: LocalStore
    optimizer: Optimizer
    sync: GradientSync
    batch_stats: BatchStats
    cut: Cut  # of a training batch, into the micro-batches that this rank computes
    program: Program
    evaluation: Evaluation
    check: Callable[[Loader], None]  # refuses batches that cannot be cut
    describe: Mapping[str, Any]
    outcome: Callable[[], dict[str, Any]]
    comms: Sequence[Comm]  # made for these parts
    progress: Callable[[], AbstractContextManager[None]] = nullcontext  # around the steps
    messages: Messages = NO_MESSAGES


class Synchronous:
    """Every rank runs the executor on its part of each batch."""

    position = None

    def __init__(
        self, parts: Parts, layout: Layout, spec: TrainSpec, clip_norm: float | None
    ) -> None:
        self.layout, self.optimizer = layout, parts.optimizer
        self._parts, self._fields, self._objective = parts, spec.part.fields, spec.task.objective
        model, control, held = spec.task.model, spec.control, spec.part.held
        counts = PartTable(model, layout.model, held).counts
        self._executor = Executor(
            parts.stages,
            parts.sync,
            Update(
                parts.store,
                parts.optimizer,
                clip_norm,
                control.lr,
                layout,
                counts,
                [p for p, _ in spec.part.tied],
                spec.recorder,
            ),
            control.stop,
            parts.program,
            parts.batch_stats,
            parts.messages,
            spec.recorder,
        )
        self.entries = Entries(model, layout.all, held)

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        parts, state = self._parts, start
        parts.check(loader)
        loads = loader.loads(start.epoch, parts.cut, start.batch, self._fields)
        with parts.progress(), closing(loads):
            for load in loads:
                result = self._executor.run(load, state, len(loader))
                state = result.state
                yield result

    def evaluate(self, loader: Loader, step: int) -> Sums:
        parts, objective = self._parts, self._objective
        with parts.store.reading():
            return parts.evaluation.sums(
                objective, parts.stages, loader, step, self._fields, parts.messages
            )

    def describe(self) -> dict[str, Any]:
        return dict(self._parts.describe)

    def outcome(self) -> dict[str, Any]:
        return self._parts.outcome()

    def close(self) -> None:
        self._parts.store.close()
        for comm in self._parts.comms:
            comm.free()
        self.layout.free()
