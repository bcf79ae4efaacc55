"""Boundary: what crosses between two stages of a model."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from nnmpi.nn.graph import Edge, Graph
from nnmpi.nn.parameter import inverse

Boundary: TypeAlias = tuple[Edge, ...]
"""The tensors that cross, in the order in which they are sent. Gradients of those that require one
come back."""


def boundary(graph: Graph, k: int, local: Mapping[int, Sequence[int]] | None = None) -> Boundary:
    """What crosses in front of node k.

    Where a rank has a part of an edge only, `local` has the lengths of its axes there, by edge.
    """
    return tuple(resized(graph.edges[e], (local or {}).get(e)) for e in graph.crossing(k))


def resized(edge: Edge, lengths: Sequence[int] | None) -> Edge:
    """The edge with axes of these lengths: of one sample, along the axis of samples."""
    if lengths is None:
        return edge
    axes = zip(edge.axes, lengths, strict=True)
    return edge._replace(axes=tuple(axis._replace(size=n) for axis, n in axes))


def zeros(edge: Edge, samples: int) -> np.ndarray:
    """An array for so many samples, with the order of the axes in memory."""
    shape = edge.shape(samples)
    memory = np.zeros([shape[k] for k in edge.order], edge.dtype)
    return memory.transpose(inverse(edge.order))
