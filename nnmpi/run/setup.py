"""Makes data, models and loaders on each rank; if one rank fails, all ranks fail."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.backend import Backend
from nnmpi.comm import Comm, comm_self
from nnmpi.config import Config
from nnmpi.data import Dataset, Loader, Standardiser
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import schedule
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.boundary import Boundary
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.pipeline.stages import split
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.run import builders, consistency
from nnmpi.run.files import check_outputs
from nnmpi.run.first_pass import first_pass

Build = Callable[[], Module]


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
    config: Config, build: Build | None, given: Dataset | tuple[Any, ...] | None, comm: Comm
) -> Setup:
    """Checks the config, loads the data and makes the models. Every rank calls it."""
    on = all_or_none(comm, lambda: _checked_device(config, comm))
    dataset = _load_data(config, given, comm)
    batches = all_or_none(comm, lambda: _batches(config, dataset))
    model = all_or_none(comm, lambda: builders.model(config, build))
    consistency.check_inputs(comm, config, dataset, model)
    layout = Layout.of(config, comm)
    tp = layout.axis["tp"]
    sharding = all_or_none(comm, lambda: builders.sharded(config, model, tp))
    trained, twin = _models(config, build, model, dataset, batches, on, layout, sharding)
    consistency.check_values(comm, model, trained.part.held)
    return Setup(layout, dataset, trained, twin, batches, sharding)


def _checked_device(config: Config, comm: Comm) -> Backend:
    if comm.rank == 0:  # which writes the files
        check_outputs(config)
    plan.check(config, comm.size)
    return backend.get(config.device)


def _load_data(config: Config, given: Dataset | tuple[Any, ...] | None, comm: Comm) -> Dataset:
    """The data set; the first rank downloads files before the other ranks look for them."""
    load = partial(builders.dataset, config, given)
    is_first = config.download and comm.rank == 0
    downloaded = all_or_none(comm, lambda: load() if is_first else None)
    return all_or_none(comm, lambda: downloaded or load())


def _batches(config: Config, dataset: Dataset) -> Batches:
    standardiser = Standardiser.of(dataset.train)
    loader = partial(
        Loader,
        batch_size=config.batch_size,
        standardiser=standardiser,
        dtype=config.dtype,
        seed=config.seed,
    )
    train, test = loader(dataset.train, shuffle=True), loader(dataset.test, shuffle=False)
    steps = config.epochs * len(train)
    steps = steps if config.steps is None else min(steps, config.steps)
    return Batches(standardiser, train, test, steps, schedule.parse(config.lr_schedule, steps))


def _models(
    config: Config,
    build: Build | None,
    model: Module,
    dataset: Dataset,
    batches: Batches,
    on: Backend,
    layout: Layout,
    sharding: Sharding,
) -> tuple[Trained, Trained | None]:
    """What this rank has of the model, and the model that --verify trains beside it."""

    def gather(n: int) -> np.ndarray:
        return batches.train.gather(np.arange(min(n, len(dataset.train.y)))).x

    def trained(model: Module, part: ModelPart, pp: Comm, tp: Comm, how: Sharding) -> Trained:
        all_or_none(layout.all, lambda: builders.initialise(config, part, on))
        found = first_pass(config, part, dataset, on, pp, layout.all, partial(how.columns, tp.rank))
        return Trained(Task(model, builders.criterion(how, tp), on), part, *found)

    part = split(config, layout, model, gather, on, len(batches.train))
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
