"""Makes the model of --model: by a user's function, or by kind and sizes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from nnmpi.addons import Table
from nnmpi.data import Dataset
from nnmpi.io.files.model_files import Build, model_file
from nnmpi.nn import Module
from nnmpi.nn.models import MODELS, SIZE, mlp
from nnmpi.options import user_code
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted


class SizedModel(NamedTuple):
    """A kind of model that --model can name with its sizes, or which takes those of the data.

    form   an example of its name, such as mlp:784-1024-10; the text before the colon selects the
           kind
    build  (config, data set): makes the model which `config.model` names
    """

    form: str
    build: Callable[[Config, Dataset], Module]


class ModelFacts:
    """Facts about a model that its tensors do not contain, such as the sizes from which it can be
    made again; none here. Rows of the add-on table `model_facts` have subclasses."""

    def __init__(self, model: Module) -> None:
        self.model: Any = model

    def metadata(self) -> dict[str, str]:
        """Returns metadata to be stored in the file of the model, besides the value of --model."""
        return {}

    def sizes(self) -> tuple[Any, ...] | None:
        """Returns the sizes from which the model can be made again; None if unknown."""
        return None

    def check(self, dataset: Dataset) -> None:
        """Raises ValueError if the model cannot take the samples of the data set."""


MODEL_FACTS: Table[type[ModelFacts]] = Table("model_facts")
"""By a class of models, as "module:name": what is known of such a model."""


def facts_of(model: Module) -> ModelFacts:
    """Returns the ModelFacts of a model (facts that its tensors do not contain): of the class that
    the add-on table `model_facts` names for the model's class or a base class, if there is one."""
    classes = (f"{c.__module__}:{c.__qualname__}" for c in type(model).__mro__)
    known = filter(None, (MODEL_FACTS.row(name) for name in classes))
    return next(known, ModelFacts)(model)


def resolved(config: Config, build: Build | None) -> tuple[Config, Build | None]:
    """Returns (config, build), where `build` makes the model; None: `config.model` names it. If it
    is described by config.json of --load, and not by the user, they are for that."""
    is_own = build is not None or user_code.is_named(config.model)
    if config.load and not is_own:
        is_named = config.model != Config().model
        config, build = model_file(config.load).resolved(config, is_named)
    return config, build


MORE_SIZED: Table[SizedModel] = Table("models")
"""By the name before the colon: a kind of model of an add-on."""


def builder(config: Config, dataset: Dataset) -> Build:
    """Returns a function that makes the model which --model names, for a data set."""
    spec = config.model
    if spec in MODELS:
        return MODELS[spec]
    sized = _sized(spec)
    if sized and (":" in spec) == (":" in sized.form):
        return partial(sized.build, config, dataset)
    if not user_code.is_named(spec):
        forms = (s.form for s in (*SIZED.values(), *MORE_SIZED.rows()))
        known = ", ".join([*MODELS, *forms, "package.module:function"])
        raise ValueError(f"model {quoted(spec)} is unknown; choose one of {known}")
    function: Build = user_code.imported(spec, "model")
    return function


def _sized(spec: str) -> SizedModel | None:
    """Returns the kind of model, such as mlp, before the colon of `spec`, or None."""
    name = spec.partition(":")[0]
    return SIZED.get(name) or MORE_SIZED.row(name)


def _mlp(config: Config, _: Dataset) -> Module:
    """Makes a model such as mlp:784-1024-10, with the widths of its layers."""
    widths = config.model.partition(":")[2].split("-")
    if len(widths) < 2 or not all(re.fullmatch(SIZE, w) for w in widths):
        raise ValueError(
            f"model {quoted(config.model)}: give an mlp as mlp:784-1024-10, with two widths or "
            "more from 1 on and below 10^9"
        )
    return mlp(*map(int, widths))


SIZED = {"mlp": SizedModel("mlp:784-1024-10", _mlp)}
"""Kinds of models by the text before the colon; add-ons have more, in the table `models`."""
