"""Makes data, models and loaders on each rank; if one rank fails, all ranks fail."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.backend import Backend
from nnmpi.comm import Comm, comm_self
from nnmpi.config import EPOCHS, LEAST_STEPS, Config
from nnmpi.data import Dataset, Inputs, Loader, Standardiser
from nnmpi.metrics import Metric
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import schedule
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.boundary import Boundary
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.pipeline.stages import split, stages_of
from nnmpi.parallel.step.objective import Criterion
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.run import builders, consistency, objectives
from nnmpi.run.files import loading
from nnmpi.run.files.outputs import check_outputs
from nnmpi.run.first_pass import first_pass, traced
from nnmpi.run.objectives import check_metrics, takes_parts

Build = Callable[[], Module]

NO_METRICS: Mapping[str, Metric] = MappingProxyType({})
"""Losses of classes have the accuracy without being asked for it."""


class Goal(NamedTuple):
    """What is trained and measured, before it is known how the scores are spread over ranks."""

    loss: Criterion
    metrics: Mapping[str, Metric]


class Trained(NamedTuple):
    """A model with its loss, and what this rank has of it."""

    task: Task
    part: ModelPart
    boundaries: list[Boundary]  # between the stages of all ranks
    parameters: list[Parameter]  # that are trained, in the order of their use


class Batches(NamedTuple):
    """The batches of a run."""

    standardiser: Standardiser
    train: Loader
    test: Loader
    steps: int
    lr_factor: schedule.Schedule


class Setup(NamedTuple):
    """What a run starts from; the same on every rank, but for its part of the model."""

    layout: Layout
    dataset: Dataset
    trained: Trained
    twin: Trained | None  # the model that --verify trains on one rank
    batches: Batches
    sharding: Sharding


def set_up(
    config: Config,
    build: Build | None,
    given: Dataset | tuple[Any, ...] | None,
    comm: Comm,
    loss: Any = None,
    metrics: Mapping[str, Metric] = NO_METRICS,
) -> Setup:
    """Checks the config, loads the data and makes the models. Every rank calls it."""
    on = all_or_none(comm, lambda: _checked_device(config, comm))
    goal = all_or_none(comm, lambda: Goal(objectives.criterion(loss), check_metrics(metrics)))
    dataset = _load_data(config, given, comm, goal.loss)
    model = all_or_none(comm, lambda: builders.model(config, build))
    consistency.check_inputs(comm, config, dataset, model)
    is_cut = stages_of(config) > 1
    graph = all_or_none(comm, lambda: traced(config, dataset, model) if is_cut else None)
    standardiser = all_or_none(comm, lambda: _standardiser(config, dataset, comm))
    batches = all_or_none(comm, lambda: _batches(config, dataset, standardiser, goal.loss))
    layout = Layout.of(config, comm)
    tp = layout.axis["tp"]
    whole = not takes_parts(goal.loss, dataset)
    sharding = all_or_none(comm, lambda: builders.sharded(config, model, tp, whole))
    trained, twin = _models(
        config, build, model, graph, dataset, batches, on, layout, sharding, goal
    )
    consistency.check_values(comm, model, trained.part.held)
    return Setup(layout, dataset, trained, twin, batches, sharding)


def _checked_device(config: Config, comm: Comm) -> Backend:
    if comm.rank == 0:  # which writes the files
        check_outputs(config)
    plan.check(config, comm.size)
    return backend.get(config.device)


def _load_data(
    config: Config, given: Dataset | tuple[Any, ...] | None, comm: Comm, loss: Criterion
) -> Dataset:
    """The data set; the first rank downloads files before the other ranks look for them."""
    load = partial(builders.dataset, config, given, objectives.ignored_label(loss))
    is_first = config.download and comm.rank == 0
    downloaded = all_or_none(comm, lambda: load() if is_first else None)
    return all_or_none(comm, lambda: downloaded or load())


def total_steps(config: Config, batches: int) -> int:
    """The steps of a run with so many batches in an epoch."""
    if config.epochs is None and config.steps is not None:
        return config.steps
    epochs = config.epochs or max(EPOCHS, -(-LEAST_STEPS // batches))
    return min(epochs * batches, config.steps or epochs * batches)


def _standardiser(config: Config, dataset: Dataset, comm: Comm) -> Standardiser:
    """That of the file of --load if it has one, else that of the training samples."""
    if not config.load:
        return Standardiser.of(dataset.train)
    if comm.rank == comm.node()[0]:  # the file is read whole once per node
        loading.check_digest(config.load)
    metadata = loading.read_metadata(config.load)
    if not metadata.keys() & {"mean", "std"}:
        return Standardiser.of(dataset.train)
    try:
        return Standardiser.from_metadata(metadata).shaped_for(dataset.train.x)
    except ValueError as error:
        raise ValueError(f"--load {config.load} and data {dataset.name}: {error}") from None


def _batches(
    config: Config, dataset: Dataset, standardiser: Standardiser, loss: Criterion
) -> Batches:
    objectives.check_labels(loss, dataset)
    plan.check_batch(config, len(dataset.train.y))
    loader = partial(
        Loader,
        batch_size=config.batch_size,
        standardiser=standardiser,
        dtype=config.dtype,
        seed=config.seed,
        divisor=loss.divisor,
    )
    train, test = loader(dataset.train, shuffle=True), loader(dataset.test, shuffle=False)
    steps = total_steps(config, len(train))
    return Batches(standardiser, train, test, steps, schedule.parse(config.lr_schedule, steps))


def _models(
    config: Config,
    build: Build | None,
    model: Module,
    graph: Graph | None,
    dataset: Dataset,
    batches: Batches,
    on: Backend,
    layout: Layout,
    sharding: Sharding,
    goal: Goal,
) -> tuple[Trained, Trained | None]:
    """What this rank has of the model, and the model that --verify trains beside it."""

    def gather(n: int) -> Inputs:
        return batches.train.gather(np.arange(min(n, len(dataset.train.y)))).x

    def trained(model: Module, part: ModelPart, pp: Comm, tp: Comm, how: Sharding) -> Trained:
        all_or_none(layout.all, lambda: builders.initialise(config, part, on))
        check = objectives.check_scores(goal.loss, dataset, partial(how.columns, tp.rank))
        found = first_pass(config, part, dataset, on, pp, layout.all, check)
        return Trained(Task(model, objectives.objective(*goal, how, tp), on), part, *found)

    part = split(config, layout, model, graph, gather, on, len(batches.train))
    first = trained(model, part, layout.axis["pp"], layout.axis["tp"], sharding)
    if not config.verify:
        return first, None
    other = all_or_none(layout.all, lambda: _another(config, build, model))
    alone = comm_self()
    return first, trained(other, ModelPart.whole(other), alone, alone, UNSHARDED)


def _another(config: Config, build: Build | None, model: Module) -> Module:
    """The same model once more."""
    other = builders.model(config, build)
    if {*other.parameters()} & {*model.parameters()}:
        raise ValueError(
            f"model {config.model}: build returns the same object twice, and verify trains two "
            "models side by side; let build make a new one each time"
        )
    return other
