"""Session: what a run has while its ranks are arranged in one way; it can be made anew.

    Setup ─► graph ─► arrangement ─► Comms, model, stores, strategy

If one rank fails, all ranks fail.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi.comm import AbortedError, Comm, OtherRankError
from nnmpi.config import Config
from nnmpi.data import Inputs
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrange import alone, arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.discovery import discover
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.model.snapshot import Restored
from nnmpi.parallel.recorder import Recorder
from nnmpi.parallel.step.executor import StepControl
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.strategy import OnEvent, Strategy, TrainSpec
from nnmpi.parallel.tensor.parallelize import rebuild
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.run import builders, consistency, objectives
from nnmpi.run.setup import Setup
from nnmpi.run.snapshot import Snapshot, next_steps


class Hooks(NamedTuple):
    """What the strategy asks of the trainer, and tells it."""

    control: StepControl
    on_event: OnEvent
    recorder: Recorder


class Session:
    """A model, arranged ranks and a strategy; closing the strategy frees what the ranks share.

    Every rank makes it. With a snapshot, of each rank, all is as it was then.
    """

    arrangement: Arrangement
    part: ModelPart
    task: Task
    strategy: Strategy

    def __init__(
        self,
        config: Config,
        setup: Setup,
        comm: Comm,
        hooks: Hooks,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._config = replace(config, load=None) if snapshot else config
        self._setup, self._comm, self._hooks = setup, comm, hooks
        model = all_or_none(comm, lambda: builders.model(config, setup.build))
        consistency.check_model(comm, model)
        graph = all_or_none(
            comm, lambda: objectives.model_graph(config, model, setup.dataset, setup.loss)
        )
        consistency.check_graph(comm, graph)
        self._layout = Layout.of(config, comm)
        try:
            self._open(model, graph, snapshot)
        except (ValueError, OtherRankError):  # on all ranks
            with suppress(AbortedError):  # of ranks as threads, others may have ended first
                self._layout.free()
            raise

    def _open(self, model: Module, graph: Graph, snapshot: Snapshot | None) -> None:
        config, setup, comm, layout = self._config, self._setup, self._comm, self._layout
        sharding = all_or_none(
            comm, lambda: builders.sharded(config, graph, setup.loss, setup.dataset)
        )
        if config.tp > 1:
            all_or_none(comm, lambda: rebuild(model, graph, sharding, layout.axis["tp"]))
        known = snapshot.measured if snapshot and snapshot.fits(config, comm.size) else {}
        self.arrangement, facts = self._arranged(model, graph, sharding, known)
        self.part = plan.own_stages(model, self.arrangement, comm.rank, facts)
        all_or_none(comm, lambda: builders.initialise(config, self.part, setup.on))
        spec = self._spec(self.part, self.arrangement, layout)
        self.task = spec.task
        restored = Restored(snapshot.owned, self.part, config.dtype, comm) if snapshot else None
        if restored:
            restored.values_to_model()
        twin = self._twin(model) if config.verify else None
        consistency.check_values(comm, model, self.part.held)
        steps = next_steps(comm, snapshot.positions, layout.workers) if snapshot else ()
        spec = spec._replace(recorder=self._hooks.recorder, twin=twin, next_steps=steps)
        try:
            self.strategy = plan.build(layout, spec)
        except ValueError as error:  # on all ranks: only the first one raises it
            comm.agree(error)
            raise
        if restored:
            restored.sums_to_optimizer(self.strategy.optimizer)

    def _arranged(
        self, model: Module, graph: Graph, sharding: Sharding, known: Mapping[str, Any]
    ) -> tuple[Arrangement, Mapping[str, Any]]:
        """The arrangement, after what has to be measured for it and is not known, and facts of its
        cut."""
        config, setup, comm, layout = self._config, self._setup, self._comm, self._layout
        cut = replace(config, cut=known.get("cut", config.cut))

        def samples(n: int) -> Inputs:
            return setup.train.gather(np.arange(min(n, len(setup.dataset.train.y)))).x

        division, facts = plan.measured_stages(
            cut, layout, model, graph, samples, setup.on, len(setup.train)
        )
        cluster, measured = discover(comm), dict(known)
        if "cut" in facts:
            measured["cut"] = facts["cut"]
        arranged = partial(arrange, config, cluster, graph, sharding, division, measured)
        first = all_or_none(comm, arranged)
        if not first.has_to_be_measured or "allreduce" in measured:
            return first, facts
        names = np.array([layout.axis["dp"].fastest(first.longest_sum)], "S32")
        comm.broadcast(names.view(np.uint8))
        measured["allreduce"] = names[0].decode()
        return arranged(), facts

    def _spec(self, part: ModelPart, arrangement: Arrangement, layout: Layout) -> TrainSpec:
        """A model, and what of it is trained here."""
        setup, named = self._setup, dict(part.model.named_parameters())
        here = arrangement.held(layout.all.rank).trained
        return TrainSpec(
            Task(
                part.model,
                objectives.objective(
                    setup.loss, setup.metrics, arrangement.sharding, layout.axis["tp"]
                ),
                setup.on,
            ),
            part,
            [named[arrangement.graph.variables[p.variable].path] for p in here],
            arrangement,
            partial(builders.optimizer, self._config),
            self._hooks.control,
            self._hooks.on_event,
        )

    def _twin(self, model: Module) -> TrainSpec:
        """What --verify trains on one rank beside the model, of which it has nothing."""
        config = self._config

        def another() -> ModelPart:
            other = builders.model(config, self._setup.build)
            if {*other.parameters()} & {*model.parameters()}:
                raise ValueError(
                    f"model {config.model}: build returns the same object twice, and verify "
                    "trains two models side by side; let build make a new one each time"
                )
            part = ModelPart.whole(other)
            builders.initialise(config, part, self._setup.on)
            return part

        one = all_or_none(self._comm, lambda: alone(self.arrangement))
        return self._spec(all_or_none(self._comm, another), one, Layout.of_one_rank())
