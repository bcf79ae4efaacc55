"""Synchronous: the strategy of ranks that make every step together, from parts that differ."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.data import Loader
from nnmpi.data.loader import Cut
from nnmpi.metrics import Sums
from nnmpi.nn.passes import BatchStats
from nnmpi.optim import Optimizer
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.entries import Entries
from nnmpi.parallel.model.parts import PartTable, everything
from nnmpi.parallel.step.evaluation import as_sums, evaluate
from nnmpi.parallel.step.executor import Executor, GradientSync, Program
from nnmpi.parallel.step.ports import Stage
from nnmpi.parallel.step.state import StepResult, StepState
from nnmpi.parallel.step.update import Update
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec


class Evaluation(NamedTuple):
    """Which samples of a test batch this rank evaluates, and the ranks that share them."""

    cut: Cut
    comm: Comm


class Parts(NamedTuple):
    """What a synchronous strategy consists of."""

    stages: Sequence[Stage]
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
    held: Callable[[str], bool] = everything  # which tensors this rank has parts of, by path


class Synchronous:
    """Every rank runs the executor on its part of each batch."""

    def __init__(
        self, parts: Parts, layout: Layout, spec: TrainSpec, clip_norm: float | None
    ) -> None:
        self.layout, self.optimizer = layout, parts.optimizer
        self._parts = parts
        model, control = spec.task.model, spec.control
        counts = PartTable(model, layout.model, parts.held).counts
        self._executor = Executor(
            parts.stages,
            parts.sync,
            Update(parts.store, parts.optimizer, clip_norm, control.lr, layout, counts),
            control.stop,
            parts.program,
            parts.batch_stats,
        )
        self.entries = Entries(model, layout.all, parts.held)

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        parts, state = self._parts, start
        parts.check(loader)
        loads = loader.loads(start.epoch, parts.cut, start.batch)
        with parts.progress(), closing(loads):
            for load in loads:
                result = self._executor.run(load, state, len(loader))
                state = result.state
                yield result

    def evaluate(self, loader: Loader, step: int) -> Sums:
        cut, comm = self._parts.evaluation
        found = evaluate(self._parts.stages, loader, cut, step)
        comm.all_reduce(found, "doubling")
        return as_sums(found)

    def describe(self) -> dict[str, Any]:
        return dict(self._parts.describe)

    def outcome(self) -> dict[str, Any]:
        return self._parts.outcome()

    def close(self) -> None:
        self._parts.store.close()
        for comm in self._parts.comms:
            comm.free()
        self.layout.free()
