"""Tensor parallelism: layers whose channels are divided among the ranks of a Comm."""
