"""Makes data, models and loaders on each rank; if one rank fails, all ranks fail."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnmpi import backend
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset, Loader, Standardiser
from nnmpi.nn import CrossEntropyLoss, Module
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import schedule
from nnmpi.parallel import plan
from nnmpi.parallel.step.ports import Task
from nnmpi.run import builders, consistency
from nnmpi.run.files import check_outputs

T = TypeVar("T")
Build = Callable[[], Module]


class Trained(NamedTuple):
    """A model with its loss, and its parameters in the order in which they are used."""

    task: Task
    parameters: list[Parameter]


class Setup(NamedTuple):
    """What a run starts from; the same on every rank."""

    dataset: Dataset
    trained: Trained
    twin: Trained | None  # the model that --verify trains on one rank
    standardiser: Standardiser
    train: Loader
    test: Loader
    steps: int
    lr_factor: schedule.Schedule


def all_or_none(comm: Comm, f: Callable[[], T]) -> T:
    """Calls f on every rank; if it fails on one rank, it fails on all."""
    error: Exception | None = None
    try:
        result = f()
    except Exception as caught:
        error = caught
    comm.agree(error)
    return result


def set_up(
    config: Config, build: Build | None, given: Dataset | tuple[Any, ...] | None, comm: Comm
) -> Setup:
    """Checks the config, loads the data and makes the models. Every rank calls it."""
    on = all_or_none(comm, lambda: _checked_device(config, comm))
    dataset = _load_data(config, given, comm)
    setup = all_or_none(comm, lambda: _setup(config, build, dataset, on))
    consistency.check(comm, config, dataset, setup.trained.task.model)
    return setup


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


def _setup(config: Config, build: Build | None, dataset: Dataset, on: Backend) -> Setup:
    trained = _trained(config, build, dataset, on)
    twin = _trained(config, build, dataset, on) if config.verify else None
    if twin and {*twin.task.model.parameters()} & {*trained.task.model.parameters()}:
        raise ValueError(
            f"model {config.model}: build returns the same object twice, and verify trains two "
            "models side by side; let build make a new one each time"
        )
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
    lr_factor = schedule.parse(config.lr_schedule, steps)
    return Setup(dataset, trained, twin, standardiser, train, test, steps, lr_factor)


def _trained(config: Config, build: Build | None, dataset: Dataset, on: Backend) -> Trained:
    model = builders.model(config, build, on)
    builders.check_fit(config, model, dataset, on)
    sample = np.zeros_like(dataset.train.x[:1], config.dtype)
    task = Task(model, CrossEntropyLoss(reduction="sum"), on)
    return Trained(task, plan.order_of_use(model, sample, on))
