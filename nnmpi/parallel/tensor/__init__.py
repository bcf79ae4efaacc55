"""Tensor parallelism: layers whose channels, positions, samples or experts are divided among the
ranks of a communicator, and the search for the division that sends least."""

from nnmpi.parallel.tensor.ways import POSITIONS, Way

__all__ = ["POSITIONS", "Way"]
