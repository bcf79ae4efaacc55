"""The graph of a run's model, which shows whether model, data and loss fit each other."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.tracing import trace
from nnmpi.quoting import shown


def model_graph(
    config: Config, model: Module, dataset: Dataset, check_scores: Callable[[Tensor, str], None]
) -> Graph:
    """The graph of the model; raises ValueError if model and data do not fit.

    `check_scores` raises ValueError if the scores of two samples are none of the loss.
    """
    what = f"model {shown(config.model)} and data {shown(dataset.name)} do not fit"
    x = dataset.train.x

    def zeros(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tensor(np.zeros((n, *x.shape[1:]), config.dtype)),), {}

    outputs: list[Any] = []
    try:
        graph = trace(model, zeros, config.dtype, outputs.append)
    except ValueError as error:
        sample = "x".join(map(str, x.shape[1:]))
        raise ValueError(f"{what}: samples are of shape {sample}; {error}") from None
    (y,) = outputs
    if not isinstance(y, Tensor):
        raise ValueError(f"{what}: the model must return a tensor, not a {type(y).__name__}")
    check_scores(y, what)
    if not any(v.is_trained for v in graph.variables):
        raise ValueError(f"model {config.model} has no parameter with requires_grad")
    return graph
