"""Data set, model and optimizer of a config; what does not fit raises a ValueError of one line."""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from nnmpi import data
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.nn import Conv2d, CrossEntropyLoss, Module
from nnmpi.nn.models import MODELS, mlp
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.seeding import seeded
from nnmpi.optim import OPTIMIZERS, SGD, Optimizer
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.step.ports import Criterion
from nnmpi.parallel.tensor.loss import ShardedCrossEntropyLoss
from nnmpi.parallel.tensor.parallelize import parallelize
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.run import saving


def dataset(config: Config, given: Dataset | tuple[Any, ...] | None) -> Dataset:
    """The data set that was given, whole or as arrays, or else the one that the config names."""
    if isinstance(given, Dataset):
        return given
    if given is not None:
        if not isinstance(given, tuple | list):
            raise ValueError(
                f"data has type {type(given).__name__}; give (x, y) or (x, y, x_test, y_test), "
                "or name a data set in Config"
            )
        if len(given) not in (2, 4):
            raise ValueError(f"data has {len(given)} arrays; give (x, y) or (x, y, x_test, y_test)")
        x, y, *test = given
        x_test, y_test = test or (None, None)
        return data.from_arrays(x, y, x_test, y_test, seed=config.seed)
    return data.load(
        config.data, data_dir=config.data_dir, download=config.download, seed=config.seed
    )


def model(config: Config, build: Callable[[], Module] | None) -> Module:
    """The model, whose weights are not drawn yet."""
    make = builder(config.model) if build is None else build  # may import what makes modules
    with seeded(config.seed):
        made = _built(config, make)
    try:
        made.seed = config.seed
    except ValueError as error:
        raise ValueError(f"model {config.model}: {error}") from None
    for m in made.modules():
        if isinstance(m, Conv2d) and config.convolution != "auto":
            m.algorithm = config.convolution
    return made


def sharded(config: Config, model: Module, tp: Comm) -> Sharding:
    """Divides the layers of the model among the ranks along tp, if the config asks for it."""
    if config.tp == 1:
        return UNSHARDED
    try:
        return parallelize(model, tp)
    except ValueError as error:
        raise ValueError(f"model {config.model} with tp {config.tp}: {error}") from None


def criterion(sharding: Sharding, tp: Comm) -> Criterion:
    """The loss of a model's scores, as a sum over samples."""
    if sharding.output is None:
        return CrossEntropyLoss(reduction="sum")
    return ShardedCrossEntropyLoss(tp, sharding.output, reduction="sum")


def initialise(config: Config, part: ModelPart, on: Backend) -> None:
    """Draws the weights that this rank has, from the seed, or loads them from --load."""
    for stage in part.stages.values():
        stage.to(config.dtype, on)
    part.model.convert_buffers(config.dtype, on)
    if config.load:
        saving.load_into(config.load, part.model, part.held)


def _built(config: Config, build: Callable[[], Module]) -> Module:
    """The model that `build` returns."""
    what = f"model {config.model}"
    if isinstance(build, Module):
        raise ValueError(f"{what} is an nn.Module; give the function or class that makes it")
    try:
        made = build()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside `build`: the user needs its traceback
        raise ValueError(f"{what} cannot be called without arguments: {error}") from None
    if not isinstance(made, Module):
        raise ValueError(f"{what} must return an nn.Module, not {made!r:.60}")
    return made


def builder(spec: str) -> Callable[[], Module]:
    """The function that makes the model of `--model`."""
    if spec in MODELS:
        return MODELS[spec]
    name, colon, argument = spec.partition(":")
    if name == "mlp" and colon:
        if not all(re.fullmatch("[0-9]{1,9}", part) for part in argument.split("-")):
            raise ValueError(
                f"model {spec!r:.60}: give an mlp as mlp:784-1024-10, with widths below 10^9"
            )
        return lambda: mlp(*map(int, argument.split("-")))
    if not (name.replace(".", "").isidentifier() and name[0] != "." and argument.isidentifier()):
        known = ", ".join([*MODELS, "mlp:784-1024-10", "package.module:function"])
        raise ValueError(f"model {spec!r} is unknown; choose one of {known}")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"model {spec!r}: no module named {error.name!r}; "
            "run in its directory or set PYTHONPATH"
        ) from None
    if not hasattr(module, argument):
        raise ValueError(f"model {spec!r}: module {name} has no function {argument!r}")
    function: Callable[[], Module] = getattr(module, argument)
    return function


def optimizer(config: Config, trained: Sequence[Parameter]) -> Optimizer:
    """The optimizer of the config for these parameters."""
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "sgd":
        return SGD(trained, lr, momentum=config.momentum, weight_decay=decay)
    return OPTIMIZERS[config.optimizer](trained, lr, weight_decay=decay)
