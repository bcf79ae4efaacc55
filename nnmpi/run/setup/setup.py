"""Setup: reads options and data on each rank, and makes the data set, the loaders of batches, and
the learning rate schedule of a run.

Unusable input raises a ValueError of one line; if one rank fails, all ranks fail.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons import Table
from nnmpi.arrays import backend, native
from nnmpi.arrays.backend import Backend
from nnmpi.arrays.dtypes import types_of
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Inputs, Loader, Standardiser
from nnmpi.data.loader import X_AND_Y, WantedFields, lengths_of
from nnmpi.io.files import loading
from nnmpi.io.files.model_files import model_file
from nnmpi.io.files.outputs import check_outputs
from nnmpi.metrics import Metric
from nnmpi.nn import Conv2d, Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.layers.norm import refuse_untracked
from nnmpi.nn.seeding import seeded
from nnmpi.nn.store import FlatStore
from nnmpi.nn.utils import skip_init
from nnmpi.optim.schedule import LRSchedule
from nnmpi.options import value_forms
from nnmpi.options.config import EPOCHS, LEAST_STEPS, Config
from nnmpi.options.quoting import shown
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import DEVICE_PARTS, LIBRARY_SUMS, common_backend, discover
from nnmpi.parallel.arrangement.division import Division, place_of
from nnmpi.parallel.checks import CHECKS
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.step.objective import Criterion
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.run import rank_agreement
from nnmpi.run.setup import models, objectives
from nnmpi.run.setup.datasets import check_language, dataset_of, guessed, standardiser_of
from nnmpi.run.setup.optimizers import MakeOptimizer, OptimizerOf, optimizer_of, schedule_of
from nnmpi.schedules.find import find


class MemoryLimit(NamedTuple):
    """How an add-on keeps ranks within a limit of memory.

    of      (config): the most bytes of a rank
    within  (arrangement, comm, model, samples, backend): the arrangement, changed to need no more
    """

    of: Callable[[Config], float]
    within: Callable[[Arrangement, Comm, Module, Any, Backend], Arrangement]


MEMORY_LIMITS: Table[MemoryLimit] = Table("memory_limits")
"""By an option: how ranks are kept within the memory that it allows."""

NO_METRICS: Mapping[str, Metric] = MappingProxyType({})
"""No metrics besides the loss; classification losses have the accuracy anyway."""


class TrainerArguments(NamedTuple):
    """All that users give a Trainer besides Config and Comm; see the docstring of Trainer."""

    build: Callable[[], Module] | None = None
    data: Dataset | tuple[Any, ...] | None = None
    loss: Any = None
    metrics: Mapping[str, Metric] = NO_METRICS
    callbacks: Sequence[object] = ()
    optimizer: MakeOptimizer | None = None
    schedule: LRSchedule | None = None
    resume: str | os.PathLike[str] | None = None


NOTHING_GIVEN = TrainerArguments()


class Setup(NamedTuple):
    """Everything about a run that does not depend on how ranks are arranged; equal on every rank.

    user_functions  a dict: option -> the name of the function that the user gave in its place
    guess           a warning if samples may be standardised otherwise than those of the loaded
                    model; or ""
    """

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
    schedule: Callable[[int], LRSchedule]  # of a run of so many steps
    make_optimizer: Callable[[Comm], OptimizerOf]
    user_functions: Mapping[str, str]
    guess: str

    def samples(self, n: int, fields: WantedFields = X_AND_Y) -> Inputs:
        """Returns inputs of the first n training samples; `fields` says what is needed."""
        return self.train.gather(np.arange(min(n, len(self.dataset.train.y))), fields).x


def set_up(
    config: Config, comm: Comm, given: TrainerArguments = NOTHING_GIVEN, ranks: int | None = None
) -> Setup:
    """Checks the config for `ranks` ranks that train (without spare ones, which wait), and loads
    the data; returns the Setup. Every rank calls it."""
    build, metrics = given.build, given.metrics
    if build is not None:
        config = replace(config, model=_name_of(build))
    config, build = all_or_none(comm, lambda: models.resolved(config, build))
    is_first = config.download and comm.rank == 0  # the others then find the file that it fetched

    def checked() -> tuple[Backend, Criterion, Dataset | None]:
        on = _checked_device(config, comm, ranks or comm.size)
        criterion = objectives.checked(given.loss, metrics)
        return on, criterion, dataset_of(config, given.data, criterion) if is_first else None

    device, criterion, downloaded = all_or_none(comm, checked)
    on = common_backend(comm, device)
    dataset = all_or_none(comm, lambda: downloaded or dataset_of(config, given.data, criterion))
    rank_agreement.check_inputs(comm, config, dataset)

    def rest() -> Setup:
        check_language(config, dataset)
        objectives.check_labels(criterion, dataset)
        for checks in CHECKS.given(config):
            checks.loss(config, criterion, metrics)
        strategies.check_batch(config, len(dataset.train.y))
        standardiser = standardiser_of(config, dataset, comm)
        train, test = _loaders(config, dataset, standardiser, criterion)
        steps = total_steps(config, len(train))
        schedules = partial(schedule_of, config, given.schedule)
        schedules(steps)(0)  # raises ValueError now, not in the first step
        make = partial(optimizer_of, config, given.optimizer)
        make(comm)  # raises ValueError unless it is a function
        both = {"optimizer": given.optimizer, "lr_schedule": given.schedule}
        names = {
            name: _name_of(function) for name, function in both.items() if function is not None
        }
        advice = guessed(config.load, config, dataset) if config.load else ""
        return Setup(
            *(config, build, on, criterion, metrics, dataset, standardiser, train, test),
            *(steps, schedules, make, names, advice),
        )

    setup = all_or_none(comm, rest)
    if config.load:
        rank_agreement.check_weights(comm, config.load)
    names = {"the metrics": [*metrics], "the options that are functions": [*setup.user_functions]}
    rank_agreement.check_given(comm, names, "give all ranks the same functions")
    return setup


def _loaders(
    config: Config, dataset: Dataset, standardiser: Standardiser, criterion: Criterion
) -> tuple[Loader, Loader]:
    """Returns two loaders of batches: (for the training samples, for the test samples)."""
    loader = partial(
        Loader,
        batch_size=config.batch_size,
        standardiser=standardiser,
        dtype=config.dtype,
        seed=config.seed,
        divisor=criterion.divisor,
    )
    lengths = None
    if config.bucket_by_length:
        lengths = lengths_of(dataset.train.x, dataset.name)
    varied = value_forms.augment(config.augment) if config.augment else None
    train = loader(dataset.train, shuffle=True, lengths=lengths, augment=varied)
    return train, loader(dataset.test, shuffle=False)


def _name_of(function: object) -> str:
    """Returns the name of a function, or the class name of a callable object."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def _checked_device(config: Config, comm: Comm, ranks: int) -> Backend:
    """Checks what does not depend on the data, and returns the device that the config names."""
    native.check()
    if comm.rank == 0:  # only rank 0 writes files
        check_outputs(config)
    strategies.check(config, ranks)
    find(config.schedule)
    on = backend.get(config.device)
    if device := DEVICE_PARTS.row(on.name):
        device.set_up(config, on)
    if of_library := LIBRARY_SUMS.row(config.allreduce):
        of_library.check(on)  # it is there on every rank, or on none
    return on


def total_steps(config: Config, batches: int) -> int:
    """Returns the number of steps of a run whose epochs have `batches` batches."""
    if config.epochs is None and config.steps is not None:
        return config.steps
    epochs = config.epochs or max(EPOCHS, -(-LEAST_STEPS // batches))
    return min(epochs * batches, config.steps or epochs * batches)


def build_model(config: Config, build: Callable[[], Module] | None, dataset: Dataset) -> Module:
    """Makes the model by the user's function `build`, or the one that the config names, without
    initialising its weights; raises ValueError unless it fits the data set and the options."""
    label = f"model {shown(config.model)}"
    make = build or models.builder(config, dataset)  # outside `seeded`: an import may make modules
    if isinstance(make, Module):
        raise ValueError(f"{label} is an nn.Module; give the function or class that makes it")
    with seeded(config.seed):
        try:
            made = make()
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside `make`: the user needs its traceback
            raise ValueError(f"{label} cannot be called without arguments: {error}") from None
    if not isinstance(made, Module):
        raise ValueError(f"{label} must return an nn.Module, not {shown(repr(made), 60)}")
    try:
        facts = models.facts_of(made)
        facts.check(dataset)
        for checks in CHECKS.given(config):
            checks.model(config, made)
        if config.save:
            model_file(config.save).check_model(facts.sizes(), type(made).__name__)
        refuse_untracked(made)
        made.seed = config.seed
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    for m in made.modules():
        if isinstance(m, Conv2d) and config.convolution != "auto":
            m.algorithm = config.convolution
    return made


def initialise(config: Config, part: ModelPart, on: Backend) -> loading.Loaded | None:
    """Draws the weights of this rank's part of the model from the seed; or loads them from the file
    of --load, and returns what was loaded. The parameters move into one flat store on `on`. With
    16-bit training they are float32 at first; 16-bit copies are made later."""
    dtype = types_of(np.dtype(config.dtype)).masters
    if config.load and not config.load_partial:
        skip_init(part.parameters)
    if part.parameters:
        FlatStore(part.parameters, dtype, on)
    part.model.convert_buffers(dtype, on)
    if not config.load:
        return None
    return loading.load_into(config.load, part.model, part.held, config.load_partial)


def arranged(
    config: Config,
    setup: Setup,
    layout: Layout,
    model: Module,
    graph: Graph,
    sharding: Sharding,
    known: Mapping[str, Any],
) -> tuple[Arrangement, Mapping[str, Any]]:
    """Returns the Arrangement, and facts about the pipeline's stages for events. It measures what
    it needs for that, unless the figures are in `known`. Every rank calls it."""
    comm, at = layout.all, {axis: along.rank for axis, along in layout.axis.items()}
    fields = WantedFields(positions=sharding.own_positions(at))
    samples = partial(setup.samples, fields=fields)

    division: Division | None = None
    facts: Mapping[str, Any] = {}
    measured, place = {**known}, all_or_none(comm, lambda: place_of(config))
    if len(place) > 1:
        from nnmpi.parallel.stage_cut import measured_stages  # most models are one stage

        division, facts, of_stages = measured_stages(
            config, place, layout, model, graph, samples, setup.on, known
        )
        measured |= of_stages
    cluster = discover(comm, setup.on)
    arrangement = all_or_none(
        comm, lambda: arrange(config, cluster, graph, sharding, division, measured)
    )
    for limit in MEMORY_LIMITS.given(arrangement.config):
        arrangement = limit.within(arrangement, comm, model, samples, setup.on)
    return arrangement, facts
