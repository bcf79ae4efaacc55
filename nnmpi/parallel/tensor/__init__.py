"""Tensor parallelism: layers whose channels are divided among the ranks of a Comm."""

from nnmpi.parallel.tensor.rules import Way

__all__ = ["Way"]
