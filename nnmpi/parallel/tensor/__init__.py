"""Tensor parallelism: layers whose channels are divided among the ranks of a Comm."""

from nnmpi.parallel.tensor.rules import POSITIONS, Way

__all__ = ["POSITIONS", "Way"]
