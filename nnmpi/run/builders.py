"""Data set, model and optimizer of a config; what does not fit raises a ValueError of one line."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from nnmpi import data, user_code
from nnmpi.backend import Backend
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.nn import Conv2d, CrossEntropyLoss, Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.layers.norm import refuse_untracked
from nnmpi.nn.models import MODELS, mlp
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.seeding import seeded
from nnmpi.optim import OPTIMIZERS, SGD, Optimizer
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.step.objective import Criterion
from nnmpi.parallel.tensor.shard import UNSHARDED, Sharding, shard
from nnmpi.quoting import quoted, shown
from nnmpi.run.files import loading


def dataset(
    config: Config, given: Dataset | tuple[Any, ...] | None, ignore_index: int | None = None
) -> Dataset:
    """The data set that was given, whole or as arrays, or else the one that the config names."""
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
        return data.from_arrays(x, y, x_test, y_test, seed=config.seed, ignore_index=ignore_index)
    return data.load(
        config.data,
        data_dir=config.data_dir,
        download=config.download,
        seed=config.seed,
        ignore_index=ignore_index,
    )


def model(config: Config, build: Callable[[], Module] | None) -> Module:
    """The model, whose weights are not drawn yet."""
    what = f"model {shown(config.model)}"
    make = builder(config.model) if build is None else build  # may import what makes modules
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


def sharded(config: Config, graph: Graph, loss: Criterion, dataset: Dataset) -> Sharding:
    """How the layers of the model are divided among the ranks along tp.

    Logits may be spread over ranks only if the loss can be computed from its parts.
    """
    if config.tp == 1:
        return UNSHARDED
    takes_parts = type(loss) is CrossEntropyLoss and dataset.train.y.ndim == 1
    try:
        return shard(graph, config.tp, not takes_parts)
    except ValueError as error:
        raise ValueError(f"model {config.model} with tp {config.tp}: {error}") from None


def initialise(config: Config, part: ModelPart, on: Backend) -> None:
    """Draws the weights that this rank has, from the seed, or loads them from --load."""
    for stage in part.stages.values():
        stage.to(config.dtype, on)
    part.model.convert_buffers(config.dtype, on)
    if config.load:
        loading.load_into(config.load, part.model, part.held)


def builder(spec: str) -> Callable[[], Module]:
    """The function that makes the model of `--model`."""
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
    if not user_code.is_named(spec):
        known = ", ".join([*MODELS, "mlp:784-1024-10", "package.module:function"])
        raise ValueError(f"model {quoted(spec)} is unknown; choose one of {known}")
    function: Callable[[], Module] = user_code.imported(spec, "model")
    return function


def optimizer(config: Config, trained: Sequence[Parameter]) -> Optimizer:
    """The optimizer of the config for these parameters."""
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "sgd":
        return SGD(trained, lr, momentum=config.momentum, weight_decay=decay)
    return OPTIMIZERS[config.optimizer](trained, lr, weight_decay=decay)
