"""Session: all that training needs while ranks keep one arrangement: model, memory of parameters,
communicators and strategy. A run may have several sessions, one after the other.

    Setup ─► graph ─► arrangement ─► Comms, model, stores, strategy ◄─► Snapshot

All ranks make and close a session together. An error on one rank becomes an error on all."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nnmpi.arrays import blas
from nnmpi.comm import AbortedError, Comm, OtherRankError
from nnmpi.data import Loader, Split, samples_like
from nnmpi.data.dataset import TOKENIZER
from nnmpi.data.inputs import arrays
from nnmpi.io.checkpoints.differences import check_batch_norm
from nnmpi.io.checkpoints.snapshot import Changes, Snapshot, next_steps
from nnmpi.io.files import saving
from nnmpi.io.output.messages import RANK_FIELDS
from nnmpi.metrics import Sums
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.place import StateArray
from nnmpi.nn.store import stores_of
from nnmpi.nn.utils import skip_init
from nnmpi.optim.loss_scale import LossScale, Scaler
from nnmpi.optim.replica_state import sources_of
from nnmpi.options.config import Config
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.layout import Layout, mesh_of
from nnmpi.parallel.model.mover import move
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.model.state import (
    module_state,
    other_state,
    value_arrays,
    values_and_others,
)
from nnmpi.parallel.recorder import Recorder
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.step.objective import AllScores, LossAndMetrics, Outputs
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.strategies import SINGLE_RANKS, SingleRank
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.run import rank_agreement
from nnmpi.run.callbacks import Settings
from nnmpi.run.dropped_sessions import release, watch
from nnmpi.run.footprint import Footprint
from nnmpi.run.run_state import RunState
from nnmpi.run.setup import models, objectives, probe
from nnmpi.run.setup.cutting import cut_model
from nnmpi.run.setup.setup import Setup, arranged, build_model, initialise

Arrays: TypeAlias = list[StateArray]


class Session:
    """All that a rank needs to train in one arrangement, from the initial state or from a snapshot.

    `known` is the graph of the model, if this rank has had another session of the run. A session
    reads how far training is from the RunState, which has no reference to the session.

    footprint  measures how much this process grows while the session lives
    kept       data that the Supervisor of the run keeps for this session
    shared     closes resources that `kept` shares with other ranks; runs before the strategy is
               closed
    """

    kept: Any = None
    _steps: Generator[StepResult, None, None] | None = None

    def __init__(
        self,
        setup: Setup,
        config: Config,
        comm: Comm,
        run: RunState,
        recorder: Recorder,
        snapshot: Snapshot | None = None,
        known: Graph | None = None,
    ) -> None:
        self.footprint = Footprint()
        self.config, self.comm, self.is_closed, self.is_unsharded = config, comm, False, False
        self.setup, self.run, self._recorder = setup, run, recorder
        self._initial = replace(config, load=None) if snapshot else config
        # each check precedes the messages whose lengths depend on it: ranks that differ would hang
        model = all_or_none(comm, self._build_model)
        if snapshot:
            check_batch_norm(snapshot.config, config, model)
        rank_agreement.check_model(comm, model)

        def traced() -> Graph:
            return known or objectives.model_graph(
                config, model, setup.dataset, setup.loss, self._build_model
            )

        graph = all_or_none(comm, traced)
        rank_agreement.check_graph(comm, graph)
        layout = Layout.of(config, comm)
        try:
            self._open(layout, model, graph, snapshot)
        except (ValueError, OtherRankError):  # on all ranks
            with suppress(AbortedError):  # ranks that are threads may have ended the job already
                layout.free()
            raise
        run.sessions += 1

    # ---- how it is made

    def _build_model(self) -> Module:
        model = build_model(self.config, self.setup.build, self.setup.dataset)
        list(module_state(model))  # refuses names that are in use
        return model

    def _open(self, layout: Layout, model: Module, graph: Graph, snapshot: Snapshot | None) -> None:
        """Makes all that the session holds, each thing from those before it."""
        config, comm = self.config, self.comm
        sharding = cut_model(config, model, graph, self.setup, layout)
        known = snapshot.known(config, comm.size) if snapshot else {}
        arrangement, facts = arranged(config, self.setup, layout, model, graph, sharding, known)
        part = strategies.own_stages(model, arrangement, comm.rank, facts)
        if snapshot:  # which has all values: draw none
            skip_init(part.parameters)
        loaded = all_or_none(comm, lambda: initialise(self._initial, part, self.setup.on))
        self.run.loaded = loaded or self.run.loaded
        others = self._take_values(part, model, snapshot) if snapshot else []
        spec, alone = self._spec(part, arrangement, layout), SINGLE_RANKS.chosen(config)
        single = self._single_rank(model, arrangement, alone) if alone else None
        rank_agreement.check_values(comm, part)
        self.warning = probe.warning(part, spec.task, arrangement, self.setup.train, layout)
        if graph.notes or any(m._hooks for m in model.modules()):
            # passes on paper run users' code: let it fail now, on all ranks, and not within `fit`
            all_or_none(comm, lambda: [fields(arrangement) for fields in RANK_FIELDS.rows()])
        steps = next_steps(comm, snapshot.positions, layout.workers) if snapshot else ()
        spec = spec._replace(recorder=self._recorder, single_rank=single, next_steps=steps)
        try:
            self.strategy = strategies.build(layout, spec)
        # it fails on all ranks with its own ValueError; agree, so that only one rank reports it
        except (ValueError, OtherRankError) as error:
            comm.agree(error if isinstance(error, ValueError) else None)
            raise
        self.optimizer = self.strategy.optimizer
        self.arrangement, self.part, self.task, self.model = arrangement, part, spec.task, model
        if snapshot:
            self.settings = self._resumed(spec, snapshot, others)
        else:
            self.settings = Settings(part, self.optimizer, Changes())
        self._unsharded, self.shared = ExitStack(), ExitStack()
        self._release = partial(release, self._unsharded, self.shared, self.strategy, model)
        self._unwatch = watch(comm, self, self._release)
        blas.release_memory()

    def _take_values(self, part: ModelPart, model: Module, snapshot: Snapshot) -> Arrays:
        """Copies the parameters and buffers of a snapshot to this rank's part of the model, before
        a strategy moves them to stores that ranks may share. Returns the other arrays."""
        arrays = snapshot.arrays
        values, others = all_or_none(self.comm, lambda: values_and_others(arrays, model))
        move(values, [*value_arrays(part)], self.comm)
        return others

    def _resumed(self, spec: TrainSpec, snapshot: Snapshot, others: Arrays) -> Settings:
        """Returns the settings of a snapshot, to which the state `others` belongs: it is restored
        after them."""
        settings = Settings(spec.part, self.optimizer, snapshot.changes)
        self._restore(others, mesh_of(snapshot.config, snapshot.ranks).count("dp"))
        single = spec.single_rank
        if single and single.task.scaler and self.task.scaler:
            single.task.scaler.current = self.task.scaler.current
        return settings

    def _restore(self, arrays: Arrays, replicas: int) -> None:
        """Copies all state except parameter values from `arrays`, the state of a snapshot made by
        `replicas` replicas. State that the snapshot lacks is as in a new run."""
        new = self.optimizer.replica_state.replicas if self.optimizer.replica_state else 1
        target = [*self._other_state()]
        move(arrays, target, self.comm, partial(sources_of, old=replicas, new=new))

    def _spec(self, part: ModelPart, arrangement: Arrangement, layout: Layout) -> TrainSpec:
        """Returns what a strategy is built from: parameters, loss and metrics, optimizer."""
        setup, named = self.setup, dict(part.model.named_parameters())
        objective = objectives.objective(
            setup.loss, setup.metrics, arrangement.sharding, layout.axis
        )
        here = arrangement.model_on(layout.all.rank).trained
        scaler = Scaler(LossScale.of(self.config.dtype)) if arrangement.is_mixed else None
        return TrainSpec(
            Task(part.model, objective, setup.on, scaler),
            part,
            [named[arrangement.graph.variables[p.variable].path] for p in here],
            arrangement,
            setup.make_optimizer(self.comm),
            self.run.control,
        )

    def _single_rank(self, model: Module, ours: Arrangement, alone: SingleRank) -> TrainSpec:
        """Returns the TrainSpec of a second copy of the model (--verify), which each rank trains
        alone; the two share nothing. `ours` is the arrangement of the first."""

        def another() -> ModelPart:
            other = self._build_model()
            if {*other.parameters()} & {*model.parameters()}:
                raise ValueError(
                    f"model {self.config.model}: build returns the same object twice, and verify "
                    "trains two models side by side; let build make a new one each time"
                )
            part = ModelPart.whole(other)
            initialise(self._initial, part, self.setup.on)
            return part

        single = all_or_none(self.comm, lambda: alone.arrangement(ours))
        return self._spec(all_or_none(self.comm, another), single, Layout.of_one_rank())

    # ---- between two steps

    def steps(self) -> Generator[StepResult, None, None]:
        """Returns a generator of training steps: each `next` makes one and returns its StepResult,
        from the run's current step to the end of the epoch. `end` closes the generator."""
        self.run.version += 1
        steps = self.strategy.steps(self.setup.train, self.run.state)
        self._steps = _following(self.part, steps) if len(self.part.boundaries) else steps
        return self._steps

    def evaluate(self) -> Sums:
        """Evaluates on the test split; returns sums of loss and metrics, with divisors."""
        measured = LossAndMetrics(self.task.objective)
        self._evaluate(self.setup.test, measured)
        return measured.sums

    def predict(self, x: Any) -> np.ndarray:
        """Returns the model's scores of all samples x, whole and on every rank."""
        given = all_or_none(self.comm, lambda: samples_like(x, self.setup.dataset.train))
        rank_agreement.check_samples(self.comm, given)
        graph, n, config = self.arrangement.graph, len(arrays(given)[0]), self.config
        edge = graph.edges[graph.outputs[0]]
        scores = AllScores(self.task.objective, n, edge.shape(n), edge.dtype)
        if n:
            how: Any = {"standardiser": self.setup.standardiser, "dtype": config.dtype}
            samples = Split(given, np.zeros(n))
            self._evaluate(Loader(samples, config.batch_size, shuffle=False, **how), scores)
        return scores.array

    def _evaluate(self, loader: Loader, outputs: Outputs) -> None:
        """Runs the model in evaluation mode on all samples of a loader, and passes its outputs to
        `outputs`, an object that collects them or computes losses from them."""
        with self.evaluating():
            self.strategy.evaluate(loader, self.run.state.step, outputs)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context for the model in evaluation mode, without passes in a trace's step."""
        self.model.eval()
        self.part.follow()
        with self._recorder.evaluation():
            yield
        self.model.train(self.run.in_epoch)

    @property
    def last_lr(self) -> float:
        """The learning rate of the first parameter group in the last step."""
        rate = float(self.optimizer.param_groups[0]["lr"])
        return rate * self.run.lr_factor(max(self.run.state.step - 1, 0))

    @property
    def scale(self) -> dict[str, float]:
        """The loss scale for the log, {"loss_scale": 65536.0}, or {}."""
        scaler = self.task.scaler
        return {} if scaler is None else {"loss_scale": scaler.current.scale}

    @property
    def first_has_all(self) -> bool:
        """True if rank 0 has the whole model, and can write it without messages."""
        has_all = self.arrangement.store.is_readable or self.is_unsharded
        return has_all and self.strategy.full_state.writer_has_all

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata to be stored in a file of the model, such as its name for --model."""
        dataset, standardiser = self.setup.dataset, self.setup.standardiser
        return {
            "model": self.config.model,
            **models.facts_of(self.model).metadata(),
            "data": dataset.name,
            **({TOKENIZER: dataset.language.tokenizer} if dataset.language else {}),
            **standardiser.metadata(),
        }

    def write(self, path: str | None) -> None:
        """Writes the model to a file, on rank 0; `path` has no effect on other ranks. All ranks
        call it, unless rank 0 has the whole model."""
        where = path if self.comm.rank == 0 else None
        sizes, model = models.facts_of(self.model).sizes(), type(self.model).__name__
        saving.write_whole(where, self.strategy.full_state, self.metadata, sizes, model)

    def check_copies(self, buffers: bool = False) -> None:
        """Compares copies of parameters or buffers; raises AgreedError if they differ."""
        together = self.arrangement.steps_together
        if self.config.check_copies and self.comm.size > 1 and together:
            rank_agreement.check_copies(self.part, self.comm, self.run.state.step, buffers)

    def snapshot(self, copies: bool = True) -> Snapshot:
        """Returns the state that this rank needs to continue from this step; sends no message. With
        `copies=False` it has the arrays in use, which the next step changes."""
        arrays = self.state(untrained=not self.strategy.layout.serves)
        return self.head()._replace(
            arrays=tuple(x.copied() for x in arrays) if copies else (*arrays,)
        )

    def state(self, untrained: bool = True) -> Iterator[StateArray]:
        """Yields views of the arrays that this rank owns and that a step changes. With
        `untrained=False`, only of parameters that its optimizer updates."""
        yield from value_arrays(self.part, self.optimizer, untrained)
        yield from self._other_state()

    def _other_state(self) -> Iterator[StateArray]:
        others = () if self.task.scaler is None else (self.task.scaler,)
        return other_state(self.part, self.optimizer, *others)

    def head(self) -> Snapshot:
        """Returns a snapshot of this step without its arrays: config, counters and settings."""
        run, position = self.run, self.strategy.position
        pace = run.pace.counts
        return Snapshot(
            self.config,
            self.comm.size,
            self.arrangement.measured,
            run.step_range,
            run.state,
            run.skipped,
            run.sums._replace(metrics={}),  # steps measure none, and they would be sent
            () if position is None else (position,),
            self.settings.changes,
            (),
            (pace.norm, pace.norms),
        )

    # ---- between two runs, and the end

    def unshard(self) -> None:
        """Gathers values that ZeRO divides, for use of the model until the next run."""
        for store in stores_of(self.part.parameters):
            self._unsharded.enter_context(store.between_runs())
        self.is_unsharded = True

    def reshard(self) -> None:
        """Frees the parameter values that `unshard` has gathered, because the next run begins."""
        self._unsharded.close()
        self.is_unsharded = False

    def close(self) -> None:
        """Frees resources that ranks share; the model keeps this rank's part of its values. Every
        rank calls it; further calls do nothing."""
        if not self.is_closed:
            self.comm.meet("close")
            self.is_closed, self.is_unsharded = True, False
            self._unwatch()
            self._release()

    def leave(self) -> None:
        """Abandons what ranks share after a loss: to free it would need all ranks."""
        self.is_closed = True
        self._unwatch()
        self.strategy.leave()

    def end(self) -> None:
        """Stops making steps and closes the session; every rank calls it."""
        if self._steps is not None:
            self._steps.close()
        self.close()


def _following(
    part: ModelPart, steps: Generator[StepResult, None, None]
) -> Generator[StepResult, None, None]:
    """Yields the results of steps. Before each step, changes that callbacks have made to the model,
    such as `requires_grad`, are applied to this rank's part of it."""
    with closing(steps):
        part.follow()
        for result in steps:
            yield result
            part.follow()
