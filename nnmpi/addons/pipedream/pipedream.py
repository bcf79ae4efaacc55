"""PipeDream: the pipeline stays full from batch to batch; each batch is a step on older weights.

    stage 0 of 3   F0 F1 F2 B0 APPLY0 F3 B1 APPLY1 F4 ...
    stage 2 of 3   F0 B0 APPLY0 F1 B1 APPLY1 F2 ...

A batch is one micro-batch and one step: it has its own learning rate, number and APPLY, and several
batches are in flight. The pipeline drains at the end of an epoch, or once all stages know that one
of them wants to stop; batches that the first stage has already started are completed.

The forward and the backward pass of a batch use the same version of a stage's weights (weight
stashing), although other batches update the stage in between (`VersionStore`): p-1-s of them on
stage s of p. With vertical sync all stages use the version that the first one used, p-1 updates
behind. Harlap et al. 2018, Narayanan et al. 2019. The order of operations is that of `stream` in
`schedules/lists/stream.py`.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from nnmpi.addons.pipedream.signals import REPORT, WISH, SignalChannels, StageReport
from nnmpi.addons.pipedream.versions import VersionStore
from nnmpi.arrays.backend import to_float
from nnmpi.collectives.algorithms import Collective
from nnmpi.data import Batch, StepBatch
from nnmpi.data.loader import BatchSplit
from nnmpi.optim import Optimizer
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind, StrategyKind
from nnmpi.parallel.arrangement.exchanges import FLOAT64, AxisExchange, new_exchange
from nnmpi.parallel.arrangement.flat_buffer import STOPS
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.executor_strategy import (
    Evaluation,
    ExecutorStrategy,
    StrategyParts,
    executor_of,
)
from nnmpi.parallel.layout import Layout, mesh_of
from nnmpi.parallel.recorder import Do
from nnmpi.parallel.replicas.replicas import check_micro_batches
from nnmpi.parallel.step.executor import NO_SYNC, StepResult, StepState
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.step.update import Outcome
from nnmpi.parallel.stores.local import StoreSpec, fill_unused
from nnmpi.parallel.strategy import NotFiniteError, TrainSpec
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.lists.stream import stream, window
from nnmpi.schedules.op import Kind, Op


def _list(a: Arrangement, rank: int, micro: int) -> StepList:
    """Returns the window of a rank's stream with the steps on `micro` batches."""
    return window(_chain(a, rank), micro)


def _chain(a: Arrangement, rank: int) -> Chain:
    return Chain.of_whole_stages(a.division.place, a.mesh.coordinates(rank)["pp"])


def _signal(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    """Yields the message with the signal that goes to another stage with a micro-batch's arrays."""
    to = a.mesh.rank({**a.mesh.coordinates(rank), "pp": op.peer})
    numbers = WISH if op.kind is Kind.SEND_F else REPORT
    about = Collective.MESSAGE, "", (rank, to), numbers, FLOAT64, op.kind
    yield "pp", new_exchange(a, "activations", *about, stage=op.stage)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError if several ranks would have copies of a stage of PipeDream."""
    copies = mesh_of(config, ranks).axes["dp"]
    if copies > 1:
        raise ValueError(
            f"schedule pipedream with dp {copies}: {ranks} ranks in pipelines of {config.pp} make "
            f"{copies} copies of each stage, whose gradients would have to be summed before each "
            f"update; use --pp {ranks}, or --schedule 1f1b"
        )


def pipedream(layout: Layout, spec: TrainSpec) -> ExecutorStrategy:
    """Returns the strategy for PipeDream, of which each rank is one stage; every rank calls it."""
    for p, ranks in spec.part.tied:  # known on all ranks, so all raise
        raise ValueError(
            f"schedule pipedream updates each stage by itself, but {p.place.path} is in stages on "
            f"ranks {', '.join(map(str, ranks))} along pp; use another --cut, or --schedule 1f1b"
        )
    config, control = spec.arrangement.config, spec.control
    vertical = config.vertical_sync
    store, optimizer = held(layout, spec)
    stage = OverlappingSteps(layout, spec, store, optimizer)
    parts = StrategyParts(
        store,
        BatchSplit(1, 1, 0),
        Evaluation.of_stages(config, layout),
        lambda loader: check_micro_batches(spec.task.model, loader, control.steps(), 1),
        {"schedule": "pipedream", "micro_batches": 1, **spec.part.facts, "vertical_sync": vertical},
        outcome=lambda: {"weight_versions": max(gather_objects(layout.all, store.buffers))},
    )
    return ExecutorStrategy(parts, stage.steps, stage.evaluate, optimizer, layout, spec)


def held(layout: Layout, spec: TrainSpec) -> tuple[VersionStore, Optimizer]:
    """Returns the store and the optimizer of a stage."""
    parameters, dtype = spec.parameters, spec.parameters[0].array.dtype
    of_rank, pp = (spec.arrangement, layout.all.rank), layout.axis["pp"]
    most = pp.size - (0 if spec.arrangement.config.vertical_sync else pp.rank)
    made_from = StoreSpec(*of_rank, parameters, dtype, spec.task.on, layout.axis["dp"])
    store = VersionStore(made_from, most)
    return store, spec.optimizer(parameters)


class BatchesInFlight(Sequence[Batch]):
    """The batches of an epoch as a sequence, of which only those in flight on this stage are in
    memory."""

    def __init__(self, loads: Iterable[StepBatch], count: int) -> None:
        self._loads, self._count = iter(loads), count
        self._begun, self._in_memory = 0, dict[int, StepBatch]()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        (batch,) = self._at(i).micro
        return batch

    def done(self, i: int) -> None:
        """Frees batch i, which this stage has finished."""
        del self._in_memory[i]

    def load(self, i: int) -> StepBatch:
        """Returns batch i as a StepBatch for the executor, whose micro-batch number k is batch k of
        the epoch: several batches are in flight."""
        return self._at(i)._replace(micro=self)

    def _at(self, i: int) -> StepBatch:
        while self._begun <= i:
            self._in_memory[self._begun] = next(self._loads)
            self._begun += 1
        return self._in_memory[i]


class OverlappingSteps:
    """Runs the steps of one stage of PipeDream, whose parameters are in a VersionStore; with
    --vertical-sync, on the version of the weights that the first stage used."""

    def __init__(
        self, layout: Layout, spec: TrainSpec, store: VersionStore, optimizer: Optimizer
    ) -> None:
        pp = layout.axis["pp"]
        self._signals = SignalChannels(spec.part.boundaries, pp, spec.task.on)
        self._chain = _chain(spec.arrangement, layout.all.rank)
        ends = {Kind.APPLY: self._next_version}
        hooks = (Kind.F, self._forward), (Kind.B, self._backward)
        self._executor = executor_of(
            layout, spec, NO_SYNC, ends, channels=self._signals, hooks=hooks
        )
        self._number, self._count = pp.rank, pp.size
        self._store, self._optimizer, self._control = store, optimizer, spec.control
        self._vertical, self._is_empty = spec.arrangement.config.vertical_sync, True

    def steps(
        self, loads: Iterable[StepBatch], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """Yields the results of the steps on the batches `loads`, from `start` to the end of the
        epoch or run."""
        self._check_empty()
        count = min(batches - start.batch, self._control.steps() - start.step)
        self._last, self._first_step, self._stops = count - 1, start.step, False
        self._batches, self._reports = BatchesInFlight(loads, count), dict[int, StageReport]()
        self._executor.begin(self._batches.load(0))
        # batches that are in flight before the first update use the current version on all stages
        for micro in range(min(self._count, count) if self._vertical else 0):
            self._store.retain(micro, self._store.newest)
        ops = stream(self._chain, lambda: self._last)
        state, micro = start, 0
        while micro <= self._last:
            outcome = self._executor.to_update(ops, start.step)
            state, load = state.next(batches), self._batches.load(micro)
            self._batches.done(micro)
            self._is_empty = self._count == 1 or micro == self._last
            yield StepResult(state, len(load.rows), load.divisor, *outcome)
            micro += 1

    def evaluate(
        self, loads: Generator[StepBatch, None, None], step: int, outputs: Outputs
    ) -> None:
        """Runs forward passes over the batches `loads` between two epochs, into `outputs`."""
        self._check_empty()
        self._executor.evaluate(loads, step, outputs)

    def _check_empty(self) -> None:
        """Raises ValueError if an epoch was left early, with batches in flight between stages."""
        if not self._is_empty:
            raise ValueError(
                "the steps of an epoch were left early, with batches in flight between stages: "
                "take all steps of an epoch, or end the run"
            )

    def _forward(self, do: Do, op: Op) -> None:
        micro, store = op.micro, self._store
        wish = self._signals.wish(self._control.request() >= STOPS, micro)
        self._executor.begin(self._batches.load(micro))
        if not self._vertical:
            store.retain(micro, store.newest)
        with store.version_of(micro):
            do(op)
        if self._number == self._count - 1:
            loss = to_float(self._executor.loss.loss())
            self._check_finite("loss", loss, self._first_step + micro)
            self._reports[micro] = StageReport(loss, wish)

    def _backward(self, do: Do, op: Op) -> None:
        micro = op.micro
        report = self._signals.report(self._reports.get(micro), micro)
        self._reports[micro] = report
        if report.stop and not self._stops:  # the first stage has begun these
            self._stops, self._last = True, min(self._last, micro + self._count - 1)
        self._store.begin()
        with self._store.version_of(micro):  # for layers that run again
            do(op)
        self._store.release(micro)

    def _next_version(self, step: int) -> Outcome:
        """Updates the weights to their next version by one micro-batch's gradient; returns the
        outcome."""
        store, micro = self._store, step - self._first_step
        fill_unused(store.parameters)
        squares = to_float(store.squares(store.shards))
        self._check_finite("squared norm of the gradient", squares, step)
        with store.next_version():
            self._optimizer.step(lr_factor=self._control.lr_factor(step))
        following = micro + self._count  # the batch that the first stage begins after this update
        if self._vertical and following <= self._last:
            store.retain(following, store.newest)
        return Outcome(self._reports.pop(micro).loss, self._stops and micro == self._last, True)

    def _check_finite(self, quantity: str, value: float, step: int) -> None:
        """Raises NotFiniteError if `value`, the `quantity`, is not finite: other stages would not
        skip the step."""
        if not math.isfinite(value):
            rate = self._optimizer.param_groups[0]["lr"] * self._control.lr_factor(step)
            raise NotFiniteError(
                f"stage {self._number}: the {quantity} became {value} at step {step + 1} with "
                f"learning rate {rate:g}, and pipedream cannot skip a step; try a smaller --lr or "
                "--lr-schedule warmup:100"
            )


KIND = StrategyKind(
    "pipedream",
    make=pipedream,
    held=held,
    store=StoreKind("versions", buckets=False, scalars=False),
    steps_together=False,
    is_pipeline=True,
    lists=_list,
    exchanges=dict.fromkeys((Kind.SEND_F, Kind.SEND_B), _signal),
)


CHECKS = Checks(ranks=check)
