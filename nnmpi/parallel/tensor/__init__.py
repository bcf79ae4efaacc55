"""Tensor parallelism: layers whose channels are divided among the ranks of a Comm."""

from nnmpi.parallel.tensor.ways import POSITIONS, Way

__all__ = ["POSITIONS", "Way"]
