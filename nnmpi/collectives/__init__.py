"""Collective operations as values: what they are, the proof that they work, and their price."""

from nnmpi.collectives.algorithms import ALGORITHMS as ALGORITHMS
