"""ExecutorStrategy: the strategy of ranks that compute, built from exchangeable parts.

Rules:

- Differences between strategies are fields of StrategyParts. Nothing here has an `if` about them: a
  new store or way to sum gradients changes neither this file nor the executor.
- `close` frees what uses a communicator before the communicator: the store moves its parameters out
  of shared memory, which all ranks do together.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

from nnmpi.addons import Table
from nnmpi.comm import Comm
from nnmpi.data import Loader, StepBatch
from nnmpi.data.loader import BatchCut, BatchSplit
from nnmpi.nn.layers.norm import row_norm_names
from nnmpi.nn.passes import LOCAL, BatchStats
from nnmpi.nn.recompute import CHECKED_STEPS
from nnmpi.optim import Optimizer
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import counting_flags
from nnmpi.parallel.arrangement.cluster import DEVICE_PARTS
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.whole import whole_model
from nnmpi.parallel.step.channels import Channels, Ports
from nnmpi.parallel.step.executor import (
    NO_SYNC,
    Executor,
    GradientSync,
    Lists,
    PassHooks,
    StepResult,
    StepState,
)
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.step.step_traffic import StepTraffic
from nnmpi.parallel.step.update import Ends, Norms, Update
from nnmpi.parallel.step_list.chain import stage_units
from nnmpi.parallel.step_list.step import evaluation, step_list
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec, Undo

MakeSteps: TypeAlias = Callable[
    [Iterable[StepBatch], StepState, int], Generator[StepResult, None, None]
]
"""(batches, state before the first step, number of batches in the epoch): makes a step for each
batch and yields the results; see `Executor.steps`."""

Evaluate: TypeAlias = Callable[[Generator[StepBatch, None, None], int, Outputs], None]
"""(batches, step number, outputs): runs forward passes over batches; see `Executor.evaluate`."""


class Evaluation(NamedTuple):
    """How ranks evaluate a model.

    cut      divides a test batch into the micro-batches that this rank computes
    comm     the communicator over which the loss and metrics are summed
    counts   False if another rank of `comm` has the same results
    """

    cut: BatchCut
    comm: Comm
    counts: bool = True

    @classmethod
    def of_stages(cls, config: Config, layout: Layout) -> Self:
        """Returns the Evaluation of ranks that form a pipeline."""
        cut = BatchSplit(config.micro_batches, layout.batch.size, layout.batch.rank)
        return cls(cut, layout.all, layout.counts_loss)


class StrategyParts(NamedTuple):
    """The parts of an ExecutorStrategy, in which alone the strategies differ.

    cut          divides a training batch into the micro-batches that this rank computes
    check        (loader): raises an error if a part of a batch has one sample and a layer needs
                 more
    describe     facts about the layout, for the start event
    sync         sums gradients, if all ranks make each step together
    batch_stats  sums BatchNorm statistics, if all ranks make each step together
    outcome      returns facts about the training, for the last event; every rank calls it after the
                 last step
    comms        communicators that are freed with the strategy
    progress     returns a context around the steps of an epoch, such as a thread that moves
                 messages
    """

    store: LocalStore
    cut: BatchCut
    evaluation: Evaluation
    check: Callable[[Loader], None]
    describe: Mapping[str, Any]
    sync: GradientSync = NO_SYNC
    batch_stats: BatchStats = LOCAL
    outcome: Callable[[], dict[str, Any]] = dict
    comms: Sequence[Comm] = ()
    progress: Callable[[], AbstractContextManager[None]] = nullcontext


class ExecutorStrategy:
    """A strategy in which each rank carries out a list of operations on its part of each batch.

    steps, evaluate   make the steps of an epoch, and the passes of an evaluation
    last              the record by which the last step can be undone
    """

    position = None

    def __init__(
        self,
        parts: StrategyParts,
        steps: MakeSteps,
        evaluate: Evaluate,
        optimizer: Optimizer,
        layout: Layout,
        spec: TrainSpec,
        last: Undo | None = None,
    ) -> None:
        self.layout, self.optimizer, self.last = layout, optimizer, last
        self.full_state = whole_model(spec.part, layout.all)
        self._parts, self._steps, self._evaluate = parts, steps, evaluate
        self._fields = spec.part.fields
        self._checks = [parts.check] if row_norm_names(spec.task.model) else []
        self.traffic = StepTraffic(layout, spec.arrangement, parts.store.wait)

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        parts = self._parts
        for check in self._checks:
            check(loader)
        loads = loader.loads(start.epoch, parts.cut, start.batch, self._fields)
        each = self.last.saving_buffers(loads, start.step) if self.last else loads
        steps = self._steps(each, start, len(loader))
        with parts.progress(), closing(loads), closing(steps):
            yield from self.traffic.counted(steps, loader)
            yield from steps

    def evaluate(self, loader: Loader, step: int, outputs: Outputs) -> None:
        how = self._parts.evaluation
        loads = loader.loads(0, how.cut, fields=self._fields)
        with self._parts.store.reading():
            self._evaluate(loads, step, outputs)
        if not how.counts:
            outputs.clear()
        outputs.add_up(how.comm, lambda row: how.comm.all_reduce(row, "doubling"))

    def describe(self) -> dict[str, Any]:
        return dict(self._parts.describe)

    def finish(self) -> dict[str, Any]:
        return self._parts.outcome()

    def leave(self) -> None:
        """Does nothing, since there are no threads to stop."""

    def close(self) -> None:
        self.leave()
        self._parts.store.close()
        for comm in self._parts.comms:
            comm.free()
        self.layout.free()


UNDOS: Table[Callable[..., Any]] = Table("undos")
"""Under "step" and "round": what completes or takes back the last one if a rank was lost in it."""

SLOWED: Table[
    Callable[[Config, int, int, GradientSync, BatchStats], tuple[GradientSync, BatchStats]]
] = Table("slowed")
"""By an option: sums and statistics with delays that simulate slow ranks."""


def synchronous(parts: StrategyParts, layout: Layout, spec: TrainSpec) -> ExecutorStrategy:
    """Returns the strategy of ranks that make every step together, built from its parts."""
    optimizer = spec.optimizer(parts.store.parameters)
    parts.store.keep_state(optimizer)
    update = update_of(parts.store, optimizer, layout, spec)
    last: Undo | None = undo_of(layout, "step", update, spec.part.model)
    device = None if last else DEVICE_PARTS.row(spec.task.on.name)
    deferred = device and device.deferred(spec, parts.store, optimizer, update)
    executor = executor_of(
        layout,
        spec,
        parts.sync,
        deferred.ends if deferred else update.ends,
        parts.batch_stats,
        hooks=deferred.hooks if deferred else (),
    )
    run = partial(deferred.steps, executor) if deferred else executor.steps, executor.evaluate
    return ExecutorStrategy(parts, *run, optimizer, layout, spec, last)


def undo_of(layout: Layout, what: str, *given: Any) -> Any:
    """Returns an object that can undo the last step (`what` is "step") or round of local steps
    ("round"); None if the job cannot go on after a rank is lost."""
    undo = UNDOS.row(what) if layout.all.fault_tolerant else None
    return undo and undo(*given)


def slowed(
    config: Config, rank: int, ranks: int, sync: GradientSync, stats: BatchStats
) -> tuple[GradientSync, BatchStats]:
    """Returns `sync` and `stats`, wrapped in delays if the config simulates slow ranks."""
    slow = SLOWED.chosen(config)
    return slow(config, rank, ranks, sync, stats) if slow else (sync, stats)


def update_of(store: LocalStore, optimizer: Optimizer, layout: Layout, spec: TrainSpec) -> Update:
    """Returns the Update of a rank, which ends each step."""
    a, rank = spec.arrangement, layout.all.rank
    held = a.model_on(rank)
    norms = Norms(
        [variable.variable for variable in held.trained],
        len(a.graph.variables),
        any(len(a.store.updaters(a, rank, bucket)) > 1 for bucket in held.buckets),
    )
    return Update(
        store,
        optimizer,
        a.config.clip_norm,
        spec.control.lr_factor,
        layout,
        counting_flags(a, rank),
        norms,
        [p for p, _ in spec.part.tied],
    )


def executor_of(
    layout: Layout,
    spec: TrainSpec,
    sync: GradientSync,
    ends: Ends,
    batch_stats: BatchStats = LOCAL,
    channels: Channels | None = None,
    hooks: PassHooks = (),
) -> Executor:
    """Returns the Executor of this rank, with its `ends` and `hooks`; `channels` carry tensors
    between stages, None: messages along pp."""
    a, part, rank = spec.arrangement, spec.part, layout.all.rank
    channels = channels or Channels(part.boundaries, part.stages, layout.axis["pp"], spec.task.on)
    units = stage_units(a, rank, spec.parameters)
    ports = Ports.of(spec.task, part, channels, batch_stats, units, sync.units)
    checked_steps = math.inf if spec.single_rank else CHECKED_STEPS
    lists = Lists(partial(step_list, a, rank), partial(evaluation, a, rank), checked_steps)
    passes = None
    if a.config.compile is not False:
        # here, since planning needs none of it
        from nnmpi.parallel.step.stage_lists import ReplayedStages

        on_node = a.cluster.nodes.count(a.cluster.nodes[rank])
        how = spec.single_rank is not None, a.config.compile is True, on_node, layout.axis["tp"]
        of_run = spec.control.version, spec.control.event
        passes = ReplayedStages(ports.stages, spec.task.on, *how, *of_run)
    return Executor(ports, sync, ends, spec.control.request, lists, spec.recorder, hooks, passes)
