"""Boundary: what crosses between two stages of a model."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from nnmpi.nn.graph import Edge
from nnmpi.nn.parameter import inverse

Boundary: TypeAlias = tuple[Edge, ...]
"""The tensors that cross, in the order in which they are sent. Gradients of those that require one
come back."""


def resized(edge: Edge, lengths: Sequence[int]) -> Edge:
    """The edge with axes of these lengths: of one sample, along the axis of samples."""
    axes = zip(edge.axes, lengths, strict=True)
    return edge._replace(axes=tuple(axis._replace(size=n) for axis, n in axes))


def zeros(edge: Edge, samples: int) -> np.ndarray:
    """An array for so many samples, with the order of the axes in memory."""
    shape = edge.shape(samples)
    memory = np.zeros([shape[k] for k in edge.order], edge.dtype)
    return memory.transpose(inverse(edge.order))
