"""Tensor parallelism: layers that are divided among the ranks of a Comm."""

from nnmpi.parallel.tensor.ways import POSITIONS, Way

__all__ = ["POSITIONS", "Way"]
