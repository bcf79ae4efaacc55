"""Session: what a run has while its ranks are arranged in one way; it can be made anew.

    Setup ─► graph ─► arrangement ─► Comms, model, stores, strategy

If one rank fails, all ranks fail.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi import data
from nnmpi.comm import AbortedError, Comm, OtherRankError
from nnmpi.config import Config
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.parameter import Parameter
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
from nnmpi.parallel.step.state import StepState
from nnmpi.parallel.strategy import OnEvent, Strategy, TrainSpec
from nnmpi.parallel.tensor.rebuild import rebuild
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.run import builders, consistency, objectives
from nnmpi.run.model_graph import model_graph
from nnmpi.run.setup import Setup
from nnmpi.run.snapshot import Snapshot, next_steps

Build = Callable[[], Module]


class Hooks(NamedTuple):
    """What the strategy asks of the trainer, and tells it."""

    control: StepControl
    on_event: OnEvent
    recorder: Recorder


class Session(NamedTuple):
    """Made by every rank; closing the strategy frees what the ranks share."""

    arrangement: Arrangement
    layout: Layout
    task: Task
    part: ModelPart
    strategy: Strategy


class Trained(NamedTuple):
    """A model with its loss, and what this rank has of it."""

    task: Task
    part: ModelPart
    parameters: list[Parameter]  # that are trained, in the order of the flat buffer
    arrangement: Arrangement


def open_session(
    config: Config,
    build: Build | None,
    setup: Setup,
    comm: Comm,
    hooks: Hooks,
    snapshot: Snapshot | None = None,
) -> Session:
    """Makes a model, arranges the ranks, and builds the strategy. Every rank calls it.

    With a snapshot, of each rank, all is as it was then.
    """
    if snapshot is not None:
        config = replace(config, load=None)
    model = all_or_none(comm, lambda: builders.model(config, build))
    consistency.check_model(comm, model)
    loss, dataset = setup.goal.loss, setup.dataset
    graph = all_or_none(comm, lambda: model_graph(config, model, dataset, loss))
    consistency.check_graph(comm, graph)
    layout = Layout.of(config, comm)
    try:
        return _opened(config, build, setup, layout, hooks, snapshot, model, graph)
    except (ValueError, OtherRankError):  # on all ranks
        with suppress(AbortedError):  # of ranks as threads, others may have ended first
            layout.free()
        raise


def _opened(
    config: Config,
    build: Build | None,
    setup: Setup,
    layout: Layout,
    hooks: Hooks,
    snapshot: Snapshot | None,
    model: Module,
    graph: Graph,
) -> Session:
    comm = layout.all
    whole = not objectives.takes_parts(setup.goal.loss, setup.dataset)
    sharding = all_or_none(comm, lambda: builders.sharded(config, graph, whole))
    if config.tp > 1:
        all_or_none(comm, lambda: rebuild(model, graph, sharding, layout.axis["tp"]))
    known = snapshot.measured if snapshot and snapshot.fits(config, comm.size) else {}
    cut = replace(config, cut=known.get("cut", config.cut))
    some, batches = partial(_some, setup), len(setup.train)
    stages = plan.measured_stages(cut, layout, model, graph, some, setup.on, batches)
    arrangement = _arranged(config, layout, graph, sharding, stages, known)
    part = plan.own_stages(model, arrangement, comm.rank, stages.facts)
    all_or_none(comm, lambda: builders.initialise(config, part, setup.on))
    trained = _trained(setup, arrangement, layout, model, part)
    restored = Restored(snapshot.owned, part, config.dtype, comm) if snapshot else None
    if restored:
        restored.values_to_model()
    twin = _twin(config, build, setup, arrangement, layout, model) if config.verify else None
    consistency.check_values(comm, model, part.held)
    steps = next_steps(comm, snapshot.positions, layout.workers) if snapshot else ()
    strategy = _strategy(config, layout, trained, twin, hooks, steps)
    if restored:
        restored.sums_to_optimizer(strategy.optimizer)
    return Session(arrangement, layout, trained.task, part, strategy)


def _some(setup: Setup, n: int) -> data.Inputs:
    """Some samples."""
    return setup.train.gather(np.arange(min(n, len(setup.dataset.train.y)))).x


def _arranged(
    config: Config,
    layout: Layout,
    graph: Graph,
    sharding: Sharding,
    stages: plan.Stages,
    known: Mapping[str, Any],
) -> Arrangement:
    """The arrangement, after what has to be measured for it and is not known."""
    cluster, measured = discover(layout.all), dict(known)
    if "cut" in stages.facts:
        measured["cut"] = stages.facts["cut"]

    def arranged() -> Arrangement:
        return arrange(config, cluster, graph, sharding, stages.division, measured)

    first = all_or_none(layout.all, arranged)
    if not first.has_to_be_measured or "allreduce" in measured:
        return first
    names = np.array([layout.axis["dp"].fastest(first.longest_sum)], "S32")
    layout.all.broadcast(names.view(np.uint8))
    measured["allreduce"] = names[0].decode()
    return arranged()


def _trained(
    setup: Setup,
    arrangement: Arrangement,
    layout: Layout,
    model: Module,
    part: ModelPart,
) -> Trained:
    """A model, and what of it is trained here."""
    named = dict(model.named_parameters())
    here = arrangement.held(layout.all.rank).trained
    parameters = [named[arrangement.graph.variables[p.variable].path] for p in here]
    goal, sharding = setup.goal, arrangement.sharding
    objective = objectives.objective(goal.loss, goal.metrics, sharding, layout.axis["tp"])
    return Trained(Task(model, objective, setup.on), part, parameters, arrangement)


def _twin(
    config: Config,
    build: Build | None,
    setup: Setup,
    arrangement: Arrangement,
    layout: Layout,
    model: Module,
) -> Trained:
    """The model that --verify trains on one rank beside the other."""
    other = all_or_none(layout.all, lambda: _another(config, build, model))
    one = all_or_none(layout.all, lambda: alone(arrangement))
    all_or_none(layout.all, lambda: builders.initialise(config, ModelPart.whole(other), setup.on))
    return _trained(setup, one, Layout.of_one_rank(), other, ModelPart.whole(other))


def _another(config: Config, build: Build | None, model: Module) -> Module:
    """The same model once more."""
    other = builders.model(config, build)
    if {*other.parameters()} & {*model.parameters()}:
        raise ValueError(
            f"model {config.model}: build returns the same object twice, and verify trains two "
            "models side by side; let build make a new one each time"
        )
    return other


def _strategy(
    config: Config,
    layout: Layout,
    trained: Trained,
    twin: Trained | None,
    hooks: Hooks,
    next_steps: Sequence[StepState],
) -> Strategy:
    spec = partial(
        TrainSpec,
        optimizer=partial(builders.optimizer, config),
        control=hooks.control,
        on_event=hooks.on_event,
    )
    beside = spec(*twin) if twin else None
    made = spec(*trained, recorder=hooks.recorder, twin=beside, next_steps=next_steps)
    try:
        return plan.build(layout, made)
    except ValueError as error:  # on all ranks: only the first one raises it
        layout.all.agree(error)
        raise
