"""Graphs of models of tests."""

import numpy as np

import nnmpi
from nnmpi import nn
from nnmpi.nn.graph import Graph
from nnmpi.nn.tracing import trace


def traced(model: nn.Module, *sample: int, given: str = "float32", dtype: str = "float32") -> Graph:
    """The graph of a model in a type, of samples of this shape whose type is `given`."""

    def zeros(n: int) -> tuple[tuple[nnmpi.Tensor], dict[str, nnmpi.Tensor]]:
        return (nnmpi.tensor(np.zeros((n, *sample), given)),), {}

    return trace(model, zeros, dtype)
