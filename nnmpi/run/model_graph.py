"""The graph of a run's model, which shows whether model, data and loss fit each other."""

from inspect import signature
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.config import Config
from nnmpi.data import Dataset, Inputs
from nnmpi.data.inputs import arrays, each, is_index, parts, zeros
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.sequential import only_runs_layers
from nnmpi.nn.tracing import trace
from nnmpi.parallel.step.objective import Criterion
from nnmpi.quoting import shown
from nnmpi.run import objectives


def model_graph(config: Config, model: Module, dataset: Dataset, loss: Criterion) -> Graph:
    """The graph of the model; raises ValueError if model, data and loss do not fit."""
    what = f"model {shown(config.model)} and data {shown(dataset.name)} do not fit"
    x = dataset.train.x

    def arguments(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = each(tensor, zeros(x, n, config.dtype))
        if isinstance(given, dict):
            return (), given
        return given if isinstance(given, tuple) else (given,), {}

    def check(y: Any) -> None:
        objectives.check_scores(loss, dataset, y, what)

    def lost(y: Tensor, n: int) -> Tensor:
        return loss(y, np.resize(dataset.train.y, (n, *dataset.train.y.shape[1:])))

    try:
        _check_call(model, x)
        graph = trace(model, arguments, config.dtype, check, lost)
    except objectives.MisfitError:
        raise
    except ValueError as error:
        raise ValueError(f"{what}: samples are {_shapes(x)}; {error}") from None
    if not any(v.is_trained for v in graph.variables):
        raise ValueError(f"model {config.model} has no parameter with requires_grad")
    return graph


def _check_call(model: Module, x: Inputs) -> None:
    """Raises ValueError unless the module that takes the samples takes as many arguments."""
    while only_runs_layers(model) and len(model):
        model = model[0]
    given = dict.fromkeys(x, "") if isinstance(x, dict) else {}
    try:
        signature(model.forward).bind(*([] if given else arrays(x)), **given)
    except TypeError as error:
        raise ValueError(f"{type(model).__name__}.forward: {error}") from None


def _shapes(x: Inputs) -> str:
    """The shape of a sample of each input, and the type of indices, which explains most errors."""
    found = []
    for name, array in parts(x):
        shape = "x".join(map(str, array.shape[1:])) or "() (x[:, None] has one feature)"
        kind = f"indices ({array.dtype}) " if is_index(array) else ""
        found.append(f"{kind}of shape {shape}{f' (x{name})' if name else ''}")
    return ", ".join(found)
