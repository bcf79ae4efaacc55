"""Collective algorithms as plain data, the proof that they are correct, and their cost."""

from nnmpi.collectives.algorithms import ALGORITHMS as ALGORITHMS
