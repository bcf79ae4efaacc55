"""The graph of a run's model, which shows whether model, data and loss fit each other."""

from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.tracing import trace
from nnmpi.parallel.step.objective import Criterion
from nnmpi.quoting import shown
from nnmpi.run import objectives


class MisfitError(ValueError):
    """The model does not return scores of the loss."""


def model_graph(config: Config, model: Module, dataset: Dataset, loss: Criterion) -> Graph:
    """The graph of the model; raises ValueError if model, data and loss do not fit."""
    what = f"model {shown(config.model)} and data {shown(dataset.name)} do not fit"
    x = dataset.train.x

    def zeros(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tensor(np.zeros((n, *x.shape[1:]), config.dtype)),), {}

    def check(y: Any) -> None:
        if not isinstance(y, Tensor):
            raise MisfitError(f"{what}: the model must return a tensor, not a {type(y).__name__}")
        try:
            objectives.check_scores(loss, dataset)(y, what)
        except ValueError as error:
            raise MisfitError(str(error)) from None

    def lost(y: Tensor, n: int) -> Tensor:
        return loss(y, np.resize(dataset.train.y, (n, *dataset.train.y.shape[1:])))

    try:
        graph = trace(model, zeros, config.dtype, check, lost)
    except MisfitError:
        raise
    except ValueError as error:
        sample = "x".join(map(str, x.shape[1:]))
        raise ValueError(f"{what}: samples are of shape {sample}; {error}") from None
    if not any(v.is_trained for v in graph.variables):
        raise ValueError(f"model {config.model} has no parameter with requires_grad")
    return graph
