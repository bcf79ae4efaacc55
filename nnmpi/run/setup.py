"""What each rank makes before ranks share anything; if one rank cannot, all fail."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnmpi import backend, data
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset, Loader, Standardiser
from nnmpi.nn import CrossEntropyLoss, Module
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import schedule
from nnmpi.parallel import plan
from nnmpi.parallel.executor import Task
from nnmpi.run import builders, consistency, saving
from nnmpi.run.report import check_output

T = TypeVar("T")


class Prepared(NamedTuple):
    """The parts of a run, equal on every rank."""

    dataset: Dataset
    task: Task
    twin: Task | None  # with a second model, which --verify trains on one rank
    order: tuple[list[Parameter], ...]  # the parameters of both models, in the order of their use
    standardiser: Standardiser
    train: Loader
    test: Loader
    steps: int
    factor: Callable[[int], float]  # of the learning rate, by the step


def all_or_none(comm: Comm, f: Callable[[], T]) -> T:
    """Calls f on every rank; if it fails on some rank, it fails on all."""
    error: Exception | None = None
    try:
        result = f()
    except Exception as caught:
        error = caught
    comm.agree(error)
    return result


def prepared(
    config: Config,
    build: Callable[[], Module] | None,
    given: Dataset | tuple[Any, ...] | None,
    comm: Comm,
) -> Prepared:
    """All parts; every rank calls it. If one rank fails, or differs from the others, all fail."""
    on = all_or_none(comm, lambda: _checked(config, comm))
    dataset = _in_turn(config, comm, partial(builders.dataset, config, given))
    parts = all_or_none(comm, lambda: _parts(config, build, dataset, on))
    consistency.check(comm, config, dataset, parts.task.model)
    return parts


def _in_turn(config: Config, comm: Comm, f: Callable[[], T]) -> T:
    """Calls f on all ranks; on the first rank before the others if it downloads files."""
    first = config.download and comm.rank == 0
    early = all_or_none(comm, f if first else lambda: None)
    late = all_or_none(comm, lambda: early if early is not None else f())
    assert late is not None
    return late


def _checked(config: Config, comm: Comm) -> Backend:
    """The device, if the config can be run."""
    archive = config.data.removeprefix("npz:") if "npz" in config.data else None
    if config.save and comm.rank == 0:
        saving.check_target(config.save)
        check_output("save", config.save, {"data": archive})
    if config.log and comm.rank == 0:
        others = {"save": config.save, "load": config.load, "data": archive}
        check_output("log", config.log, others)
    plan.check(config, comm.size)
    return backend.get(config.device)


def _parts(
    config: Config, build: Callable[[], Module] | None, dataset: Dataset, on: Backend
) -> Prepared:
    task = _task(config, build, on)
    builders.check_fit(config, task.model, dataset, on)
    twin = _task(config, build, on) if config.verify else None
    if twin is not None and {*twin.model.parameters()} & {*task.model.parameters()}:
        raise ValueError(
            f"model {config.model}: build returns the same object each time, but verify trains a "
            "second model beside it: let build make a new one"
        )
    sample = np.zeros_like(dataset.train.x[:1], config.dtype)
    models = [t.model for t in (task, twin) if t is not None]
    standardiser = Standardiser.of(dataset.train)
    train = _loader(config, standardiser, dataset.train, shuffle=True)
    steps = config.epochs * len(train)
    steps = steps if config.steps is None else min(steps, config.steps)
    return Prepared(
        dataset,
        task,
        twin,
        tuple(plan.order_of_use(model, sample, on) for model in models),
        standardiser,
        train,
        _loader(config, standardiser, dataset.test, shuffle=False),
        steps,
        schedule.parse(config.lr_schedule, steps),
    )


def _task(config: Config, build: Callable[[], Module] | None, on: Backend) -> Task:
    return Task(builders.model(config, build, on), CrossEntropyLoss(reduction="sum"), on)


def _loader(config: Config, standardiser: Standardiser, split: data.Split, shuffle: bool) -> Loader:
    return Loader(
        split,
        config.batch_size,
        standardiser=standardiser,
        dtype=config.dtype,
        seed=config.seed,
        shuffle=shuffle,
    )
