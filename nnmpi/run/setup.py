"""Reads options and data on each rank, and makes what they name: data set, model, optimizer.

What does not fit raises a ValueError of one line; if one rank fails, all ranks fail.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend, device, user_code
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import EPOCHS, LEAST_STEPS, Config
from nnmpi.data import Dataset, Inputs, Loader, Standardiser, from_arrays, load
from nnmpi.data.inputs import is_index
from nnmpi.dtypes import wide
from nnmpi.metrics import Metric
from nnmpi.nn import Conv2d, CrossEntropyLoss, Module
from nnmpi.nn.gpt import GPT
from nnmpi.nn.graph import Graph
from nnmpi.nn.layers.norm import refuse_untracked
from nnmpi.nn.models import MODELS, mlp
from nnmpi.nn.seeding import seeded
from nnmpi.nn.store import FlatStore
from nnmpi.optim import schedule
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.discovery import chosen, discover
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.step.objective import Criterion
from nnmpi.parallel.tensor.shard import UNSHARDED, Sharding, shard
from nnmpi.quoting import quoted, shown
from nnmpi.run import consistency, objectives
from nnmpi.run.files import loading
from nnmpi.run.files.outputs import check_outputs
from nnmpi.run.optimizers import MakeOptimizer, optimizer_of, schedule_of

NO_METRICS: Mapping[str, Metric] = MappingProxyType({})
"""Losses of classes have the accuracy without being asked for it."""


class Setup(NamedTuple):
    """What a run starts from, however its ranks are arranged; the same on every rank.

    own: the names of functions that stand for options
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
    schedule: Callable[[int], schedule.Schedule]  # of a run of so many steps
    make_optimizer: MakeOptimizer
    own: Mapping[str, str]


def set_up(
    config: Config,
    build: Callable[[], Module] | None,
    data: Dataset | tuple[Any, ...] | None,
    comm: Comm,
    loss: Any = None,
    metrics: Mapping[str, Metric] = NO_METRICS,
    optimizer: MakeOptimizer | None = None,
    own_schedule: schedule.Schedule | None = None,
) -> Setup:
    """Checks the config and loads the data. Every rank calls it."""
    if build is not None:
        config = replace(config, model=_name_of(build))
    is_first = config.download and comm.rank == 0  # the others then look for what it has fetched

    def checked() -> tuple[Backend, Criterion, Dataset | None]:
        on, criterion = _checked_device(config, comm), objectives.checked(loss, metrics)
        return on, criterion, _dataset(config, data, criterion) if is_first else None

    found, criterion, downloaded = all_or_none(comm, checked)
    on = chosen(comm, found)
    dataset = all_or_none(comm, lambda: downloaded or _dataset(config, data, criterion))
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
        schedules = partial(schedule_of, config, own_schedule)
        schedules(steps)(0)  # raises ValueError for what is no factor
        make = optimizer_of(config, optimizer, comm)
        both = {"optimizer": optimizer, "lr_schedule": own_schedule}
        own = {name: _name_of(given) for name, given in both.items() if given is not None}
        return Setup(
            *(config, build, on, criterion, metrics, dataset, standardiser, train, test),
            *(steps, schedules, make, own),
        )

    setup = all_or_none(comm, rest)
    consistency.check_functions(comm, [*metrics], [*setup.own])
    return setup


def _name_of(function: object) -> str:
    """The name of a function, or of the class of what is called as one."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def _checked_device(config: Config, comm: Comm) -> Backend:
    if comm.rank == 0:  # which writes the files
        check_outputs(config)
    plan.check(config, config.ranks or comm.size)
    on = backend.get(config.device)
    backend.allow_tf32(on, config.tf32)
    if config.allreduce == "nccl":
        device.nccl(on)  # on every rank, or on none
    return on


def _dataset(config: Config, given: Dataset | tuple[Any, ...] | None, loss: Criterion) -> Dataset:
    """The data set that was given, whole or as arrays, or else the one that the config names."""
    ignored = objectives.ignored_label(loss)
    if isinstance(given, Dataset):
        return given
    if given is not None:
        is_tuple = isinstance(given, tuple | list)
        if not is_tuple or len(given) not in (2, 4):
            what = f"{len(given)} arrays" if is_tuple else f"type {type(given).__name__}"
            raise ValueError(
                f"data has {what}; give (x, y) or (x, y, x_test, y_test), or name a data set in "
                "Config"
            )
        x, y, *test = given
        x_test, y_test = test or (None, None)
        return from_arrays(x, y, x_test, y_test, seed=config.seed, ignore_index=ignored)
    return load(
        config.data,
        data_dir=config.data_dir,
        download=config.download,
        seed=config.seed,
        ignore_index=ignored,
        context=config.context,
    )


def total_steps(config: Config, batches: int) -> int:
    """The steps of a run with so many batches in an epoch."""
    if config.epochs is None and config.steps is not None:
        return config.steps
    epochs = config.epochs or max(EPOCHS, -(-LEAST_STEPS // batches))
    return min(epochs * batches, config.steps or epochs * batches)


def _standardiser(config: Config, dataset: Dataset, comm: Comm) -> Standardiser:
    """The standardiser that the config asks for; if `auto`, that of the file of --load if it has
    one, else of the training samples."""
    if config.load and comm.rank == comm.node()[0]:  # the file is read whole once per node
        loading.check_digest(config.load)
    if config.standardise != "auto":
        return _of_numbers(config.standardise, dataset)
    if not config.load:
        return Standardiser.of(dataset.train)
    metadata = loading.read_metadata(config.load)
    if not metadata.keys() & {"mean", "std"}:
        return Standardiser.of(dataset.train)
    try:
        return Standardiser.from_metadata(metadata).shaped_for(dataset.train.x)
    except ValueError as error:
        raise ValueError(
            f"--load {config.load} and data {dataset.name}: {error}, or set --standardise"
        ) from None


def _of_numbers(spec: str, dataset: Dataset) -> Standardiser:
    try:
        mean, std = (0.0, 1.0) if spec == "none" else map(float, spec.split(","))
        return Standardiser.of_numbers(dataset.train.x, mean, std)
    except ValueError:
        raise ValueError(
            f"standardise {quoted(spec)} is none of auto, none, and MEAN,STD: two numbers such as "
            "0.13,0.31, of which the second is above 0"
        ) from None


def build_model(config: Config, build: Callable[[], Module] | None, dataset: Dataset) -> Module:
    """The model, whose weights are not drawn yet."""
    what = f"model {shown(config.model)}"
    make = build or _builder(config.model, dataset)  # may import what makes modules
    if isinstance(make, Module):
        raise ValueError(f"{what} is an nn.Module; give the function or class that makes it")
    with seeded(config.seed):
        try:
            made = make()
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside `make`: the user needs its traceback
            raise ValueError(f"{what} cannot be called without arguments: {error}") from None
    if not isinstance(made, Module):
        raise ValueError(f"{what} must return an nn.Module, not {shown(repr(made), 60)}")
    try:
        refuse_untracked(made)
        made.seed = config.seed
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    for m in made.modules():
        if isinstance(m, Conv2d) and config.convolution != "auto":
            m.algorithm = config.convolution
    return made


def sharding_of(config: Config, graph: Graph, loss: Criterion, dataset: Dataset) -> Sharding:
    """How the layers of the model are divided among the ranks along tp.

    Logits may be spread over ranks only if the loss can be computed from its parts.
    """
    if config.tp == 1:
        return UNSHARDED
    takes_parts = type(loss) is CrossEntropyLoss
    try:
        return shard(graph, config.tp, not takes_parts)
    except ValueError as error:
        raise ValueError(f"model {config.model} with tp {config.tp}: {error}") from None


def initialise(config: Config, part: ModelPart, on: Backend) -> loading.Loaded | None:
    """Draws the weights that this rank has, from the seed, or loads them from --load.

    Those of 16 bits are float32 until training has a store of both.
    """
    dtype = wide(np.dtype(config.dtype))
    if part.parameters:
        FlatStore(part.parameters, dtype, on)
    part.model.convert_buffers(dtype, on)
    if not config.load:
        return None
    return loading.load_into(config.load, part.model, part.held, config.load_partial)


def _builder(spec: str, dataset: Dataset) -> Callable[[], Module]:
    """The function that makes the model of `--model`; a gpt is for the tokens of the data."""
    if spec in MODELS:
        return MODELS[spec]
    name, colon, argument = spec.partition(":")
    if name == "mlp" and colon:
        widths = argument.split("-")
        if len(widths) < 2 or not all(re.fullmatch("0*[1-9][0-9]{0,8}", w) for w in widths):
            raise ValueError(
                f"model {quoted(spec)}: give an mlp as mlp:784-1024-10, with two widths or more "
                "from 1 on and below 10^9"
            )
        return lambda: mlp(*map(int, widths))
    if name == "gpt" and colon:
        return partial(gpt_of, argument, dataset)
    if not user_code.is_named(spec):
        known = ", ".join([*MODELS, "mlp:784-1024-10", "gpt:4x4x128", "package.module:function"])
        raise ValueError(f"model {quoted(spec)} is unknown; choose one of {known}")
    function: Callable[[], Module] = user_code.imported(spec, "model")
    return function


def gpt_of(argument: str, dataset: Dataset) -> Module:
    """The gpt of LAYERSxHEADSxWIDTH for windows of tokens."""
    number = "0*[1-9][0-9]{0,8}"
    if not re.fullmatch(f"{number}x{number}x{number}", argument):
        raise ValueError(
            f"model {quoted(f'gpt:{argument}')}: give a gpt as gpt:LAYERSxHEADSxWIDTH, such as "
            "gpt:4x4x128, three numbers from 1 on and below 10^9"
        )
    x = dataset.train.x
    if not isinstance(x, np.ndarray) or x.ndim != 2 or not is_index(x):
        raise ValueError(
            f"model gpt:{argument} takes windows of tokens, and data {dataset.name} has none: use "
            "--data text, or text:FILE"
        )
    layers, heads, width = map(int, argument.split("x"))
    return GPT(layers, heads, width, dataset.classes, x.shape[1])


def arranged(
    config: Config,
    setup: Setup,
    layout: Layout,
    model: Module,
    graph: Graph,
    sharding: Sharding,
    known: Mapping[str, Any],
) -> tuple[Arrangement, Mapping[str, Any]]:
    """The arrangement, after what has to be measured for it and is not known, and facts of its cut.

    Every rank calls it.
    """
    comm, cut = layout.all, replace(config, cut=known.get("cut", config.cut))

    def samples(n: int) -> Inputs:
        return setup.train.gather(np.arange(min(n, len(setup.dataset.train.y)))).x

    division, facts = plan.measured_stages(
        cut, layout, model, graph, samples, setup.on, len(setup.train)
    )
    cluster, measured = discover(comm, setup.on), dict(known)
    if "cut" in facts:
        measured["cut"] = facts["cut"]
    arrangement = partial(arrange, config, cluster, graph, sharding, division, measured)
    first = all_or_none(comm, arrangement)
    if not first.has_to_be_measured or "allreduce" in measured:
        return first, facts
    fastest = layout.axis["dp"].fastest(first.longest_sum)
    measured["allreduce"] = gather_objects(comm, fastest)[0]
    return arrangement(), facts
