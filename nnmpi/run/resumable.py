"""Resumable: training on ranks that are arranged in one way, which can be closed and opened anew.

    Setup ─► graph ─► arrangement ─► Comms, model, stores, strategy ◄─► Snapshot

What is made fails on all ranks if it fails on one.
"""

import gc
import weakref
from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from threading import RLock
from typing import Any, NoReturn, Self

import numpy as np

from nnmpi import blas
from nnmpi.comm import AbortedError, Comm, OtherRankError
from nnmpi.config import Config
from nnmpi.metrics import Sums
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.optim.loss_scale import LossScale, Scaler
from nnmpi.optim.schedule import Schedule
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.arrange import alone
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.model.snapshot import Restored, owned
from nnmpi.parallel.step.executor import StepControl, StepResult, StepState
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.strategy import Strategy, TrainSpec
from nnmpi.run import consistency, objectives, probe
from nnmpi.run.cutting import cut_model
from nnmpi.run.dropped import close_dropped, watch
from nnmpi.run.files.loading import Loaded
from nnmpi.run.report import Report
from nnmpi.run.settings import Changes, Settings
from nnmpi.run.setup import Setup, arranged, build_model, initialise
from nnmpi.run.snapshot import Snapshot, changed, next_steps
from nnmpi.run.trace import Tracer

OF_A_SESSION = ("strategy", "optimizer", "settings", "task", "part", "model")
"""Attributes that are gone when a session has ended."""

COLLECTING = RLock()
"""Held by the rank that calls `gc.collect`, as ranks may be threads: that of a second one would
return at once, having collected nothing."""


class StepPhase(Enum):
    """What this rank does; an error in a later phase may leave the model half updated."""

    BETWEEN_STEPS = auto()
    COMPUTING = auto()
    UPDATING = auto()


class Resumable:
    """The session of a Trainer, and what it has to know to go on in another one."""

    _report: Report  # of a run that has begun

    def __init__(self, setup: Setup, comm: Comm) -> None:
        self.config, self.comm, self._setup = setup.config, comm, setup
        self._set_run(None)
        self._tracer = Tracer(setup.config, comm)
        self.state, self.skipped, self._sums = StepState(), 0, Sums()
        self.loaded: Loaded | None = None  # of the file of --load
        self._first = self._runs = 0  # the step that `fit` begins with, and how often it did
        self._sessions = 0
        self._steps: Generator[StepResult, None, None] | None = None
        self.stopping = False  # all ranks have agreed to stop
        self._stop_requested = False  # on this rank
        self._phase, self._in_epoch, self._closed = StepPhase.BETWEEN_STEPS, False, True
        self._resting = ExitStack()  # between two runs: each rank has all values of its part
        self._rests = False
        close_dropped(comm)
        self._open()

    def _open(self, snapshot: Snapshot | None = None) -> None:
        """Opens a session, in which the ranks are arranged as the config says; every rank calls it.

        With a snapshot, of each rank, all is as it was then.
        """
        setup, comm = self._setup, self.comm
        self._scale = snapshot.loss_scale if snapshot else LossScale.of(self.config.dtype)
        config = replace(self.config, load=None) if snapshot else self.config
        model = all_or_none(comm, lambda: build_model(config, setup.build, setup.dataset))
        consistency.check_model(comm, model)
        graph = all_or_none(
            comm, lambda: objectives.model_graph(config, model, setup.dataset, setup.loss)
        )
        consistency.check_graph(comm, graph)
        layout = Layout.of(config, comm)
        try:
            self._open_on(layout, config, model, graph, snapshot)
        except (ValueError, OtherRankError):  # on all ranks
            with suppress(AbortedError):  # of ranks as threads, others may have ended first
                layout.free()
            raise
        self._closed, self._sessions = False, self._sessions + 1

    def _open_on(
        self,
        layout: Layout,
        config: Config,
        model: Module,
        graph: Graph,
        snapshot: Snapshot | None,
    ) -> None:
        setup, comm = self._setup, self.comm
        sharding = cut_model(config, model, graph, setup, layout)
        known = snapshot.measured if snapshot and snapshot.fits(config, comm.size) else {}
        arrangement, facts = arranged(self.config, setup, layout, model, graph, sharding, known)
        part = plan.own_stages(model, arrangement, comm.rank, facts)
        loaded = all_or_none(comm, lambda: initialise(config, part, setup.on))
        self.loaded = loaded or self.loaded
        spec = self._spec(part, arrangement, layout)
        restored = Restored(snapshot.owned, part, config.dtype, comm) if snapshot else None
        if restored:
            restored.values_to_model()
        twin = self._twin(config, model, arrangement) if config.verify else None
        consistency.check_values(comm, model, part.held)
        self.warning = ""
        if probe.is_needed(arrangement, spec.task):
            rows = np.arange(min(probe.SAMPLES, len(setup.dataset.train.y)))
            want = part.fields._replace(x=True, y=True)
            found = all_or_none(
                comm,
                lambda: probe.probe(part, spec.task, arrangement, setup.train.gather(rows, want)),
            )
            self.warning = next(filter(None, gather_objects(comm, found)), "")
            layout.axis["tp"].free_sums()  # of the layers of a few samples
        steps = next_steps(comm, snapshot.positions, layout.workers) if snapshot else ()
        spec = spec._replace(recorder=self._tracer.recorder, twin=twin, next_steps=steps)
        try:
            strategy = plan.build(layout, spec)
        except ValueError as error:  # on all ranks: only the first one raises it
            comm.agree(error)
            raise
        if restored:
            restored.sums_to_optimizer(strategy.optimizer)
        self.arrangement, self.part = arrangement, part
        self.task, self.model = spec.task, spec.task.model
        self.strategy, self.optimizer = strategy, strategy.optimizer
        changes = snapshot.changes if snapshot else Changes()
        self.settings = Settings(part, strategy.optimizer, changes)
        self._release = partial(_release, self._resting, strategy, self.model)
        self._forget = watch(comm, self, self._release)
        blas.release_memory()

    def _spec(self, part: ModelPart, arrangement: Arrangement, layout: Layout) -> TrainSpec:
        """A model, and what of it is trained here."""
        setup, named = self._setup, dict(part.model.named_parameters())
        objective = objectives.objective(
            setup.loss, setup.metrics, arrangement.sharding, layout.axis
        )
        here = arrangement.model_on(layout.all.rank).trained
        me = weakref.proxy(self)  # a Trainer that the program drops is gone at once
        return TrainSpec(
            Task(part.model, objective, setup.on, self._scale and Scaler(self._scale)),
            part,
            [named[arrangement.graph.variables[p.variable].path] for p in here],
            arrangement,
            setup.make_optimizer,
            StepControl(
                lambda step: me._scheduled(step),  # noqa: PLW0108 - as `me`, which may be gone
                lambda: me._stop_requested,
                lambda: me.total_steps,
            ),
            lambda event: me._report.event(event),  # noqa: PLW0108
        )

    def _twin(self, config: Config, model: Module, arrangement: Arrangement) -> TrainSpec:
        """What --verify trains on one rank beside the model, of which it has nothing."""

        def another() -> ModelPart:
            other = build_model(config, self._setup.build, self._setup.dataset)
            if {*other.parameters()} & {*model.parameters()}:
                raise ValueError(
                    f"model {config.model}: build returns the same object twice, and verify "
                    "trains two models side by side; let build make a new one each time"
                )
            part = ModelPart.whole(other)
            initialise(config, part, self._setup.on)
            return part

        one = all_or_none(self.comm, lambda: alone(arrangement))
        return self._spec(all_or_none(self.comm, another), one, Layout.of_one_rank())

    def _set_run(self, run: tuple[int, int] | None) -> None:
        """The steps from which on and to which the schedule of the learning rate holds, as
        fit(epochs=N) makes them; None: those of the options."""
        self._run, (start, self.total_steps) = run, run or (0, self._setup.steps)
        factor = self._setup.schedule(self.total_steps - start)
        self.lr_factor: Schedule = factor
        if start:
            self.lr_factor = lambda step: factor(max(step - start, 0))

    def _scheduled(self, step: int) -> float:
        """What multiplies the learning rates; strategies call it just before they update."""
        self._phase = StepPhase.UPDATING
        return self.lr_factor(step)

    def snapshot(self) -> Snapshot:
        """What this rank needs to go on from here, in copies; every rank calls it, after the same
        step or epoch. No message is sent."""
        self._check_together("snapshot", self._closed)
        position = self.strategy.position
        return Snapshot(
            self.config,
            self.comm.size,
            self.arrangement.measured,
            self._run,
            self.state,
            self.skipped,
            self._sums,
            () if position is None else (position,),
            self.settings.changes,
            owned(self.part, self.optimizer, whole=not self.strategy.layout.serves),
            None if self.task.scaler is None else self.task.scaler.now,
        )

    def restore(self, snapshot: Snapshot, **changes: Any) -> None:
        """Go on from a snapshot, with ranks arranged by these options; every rank calls it.

        Each rank has a snapshot of one step, of this Trainer or of another one with the same model,
        data and optimizer. All that the ranks have now is given back first.
        """
        if self._closed:  # whatever has ended the run
            self._in_epoch = self.stopping = self._stop_requested = False
            self._phase = StepPhase.BETWEEN_STEPS
        self._check_together("restore")
        self.comm.meet("restore")
        ranks = self.comm.size
        config = all_or_none(self.comm, lambda: changed(self.config, changes, snapshot, ranks))
        consistency.check_snapshot(self.comm, config, snapshot.state)
        self._end_session()
        before, self.config = self.config, config
        try:
            self._open(snapshot)
        except (ValueError, OtherRankError):
            self.config = before
            raise
        self._first, self.state = snapshot.state.step, snapshot.state
        self._set_run(snapshot.run)
        self.skipped, self._sums = snapshot.skipped, snapshot.epoch

    def rearrange(self, **changes: Any) -> None:
        """Go on from here with these options; every rank calls it, after the same step or epoch.

        If the ranks cannot be arranged so, they stay as they are.
        """
        snapshot = self.snapshot()
        try:
            self.restore(snapshot, **changes)
        except (ValueError, OtherRankError):
            if self._closed:
                self._open(snapshot)
            raise

    def _end_session(self) -> None:
        """Gives back what the ranks have of the model, the optimizer and each other."""
        if self._steps is not None:
            self._steps.close()
        self.close()
        for name in OF_A_SESSION:
            vars(self).pop(name, None)
        with COLLECTING:
            gc.collect()  # a parameter and its store know each other

    def close(self) -> None:
        """Free what ranks share; every rank calls it. The end of a `with` block does so, and `fit`
        if it fails on all ranks before its last step."""
        if not self._closed:
            self.comm.meet("close")
            self._closed, self._rests = True, False
            self._forget()
            vars(self).pop("_release")()  # which has the model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # other ranks may know nothing of an exception
            self.close()

    def _meet(self, what: str) -> None:
        """Waits for all ranks; raises ValueError unless all can do it now (see roll_call)."""
        self._check_together(what, self._closed and self.comm.size > 1)
        self.comm.meet(what)

    def _check_together(self, what: str, is_over: bool = False) -> None:
        """Raises ValueError unless all ranks can do it now, between the same two steps."""
        if is_over:
            raise ValueError(
                f"this Trainer is closed, by close() or since its run failed: call {what} before"
            )
        if self._in_epoch and not self.arrangement.steps_together:
            raise ValueError(f"ranks make their steps at different times: call {what} in on_epoch")

    def __getattr__(self, name: str) -> NoReturn:
        if name in OF_A_SESSION:
            raise AttributeError(
                f"this Trainer has no {name} since its last restore failed: restore a snapshot"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")


def _release(resting: ExitStack, strategy: Strategy, model: Module) -> None:
    """Gives back what ranks share of a session; the model keeps what this rank has of it."""
    resting.close()
    strategy.close()
    if model._together is not None:
        model._together = _refuse


def _refuse() -> NoReturn:
    raise ValueError(
        "this Trainer is closed, and each rank has a part of the model or of samples: call predict "
        "or save before, or load what was saved into a model of its own"
    )
