"""Reads options and data on each rank; if one rank fails, all ranks fail."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from nnmpi import backend
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import EPOCHS, LEAST_STEPS, Config
from nnmpi.data import Dataset, Loader, Standardiser
from nnmpi.metrics import Metric
from nnmpi.nn import Module
from nnmpi.optim import schedule
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.step.objective import Criterion
from nnmpi.run import builders, consistency, objectives
from nnmpi.run.files import loading
from nnmpi.run.files.outputs import check_outputs

NO_METRICS: Mapping[str, Metric] = MappingProxyType({})
"""Losses of classes have the accuracy without being asked for it."""


class Setup(NamedTuple):
    """What a run starts from, however its ranks are arranged; the same on every rank."""

    config: Config
    build: Callable[[], Module] | None  # makes the model, if the config does not name it
    on: Backend
    loss: Criterion
    metrics: Mapping[str, Metric]
    dataset: Dataset
    standardiser: Standardiser
    train: Loader
    test: Loader
    steps: int
    lr_factor: schedule.Schedule


def set_up(
    config: Config,
    build: Callable[[], Module] | None,
    data: Dataset | tuple[Any, ...] | None,
    comm: Comm,
    loss: Any = None,
    metrics: Mapping[str, Metric] = NO_METRICS,
) -> Setup:
    """Checks the config and loads the data. Every rank calls it."""
    if build is not None:
        config = replace(config, model=getattr(build, "__name__", type(build).__name__))
    on = all_or_none(comm, lambda: _checked_device(config, comm))
    criterion = all_or_none(comm, lambda: objectives.checked(loss, metrics))
    dataset = _load_data(config, data, comm, criterion)
    consistency.check_inputs(comm, config, dataset)

    def rest() -> Setup:
        objectives.check_labels(criterion, dataset)
        plan.check_batch(config, len(dataset.train.y))
        standardiser = _standardiser(config, dataset, comm)
        loader = partial(
            Loader,
            batch_size=config.batch_size,
            standardiser=standardiser,
            dtype=config.dtype,
            seed=config.seed,
            divisor=criterion.divisor,
        )
        train, test = loader(dataset.train, shuffle=True), loader(dataset.test, shuffle=False)
        steps = total_steps(config, len(train))
        factor = schedule.parse(config.lr_schedule, steps)
        return Setup(
            config, build, on, criterion, metrics, dataset, standardiser, train, test, steps, factor
        )

    return all_or_none(comm, rest)


def _checked_device(config: Config, comm: Comm) -> Backend:
    if comm.rank == 0:  # which writes the files
        check_outputs(config)
    plan.check(config, config.ranks or comm.size)
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
    """The standardiser of the file of --load if it has one, else of the training samples."""
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
