"""Collective algorithms as plain data, the proof that they are correct, and their cost; and graphs
of neighbours that gossip. Not here: their execution (`comm.allreduce`), simulated networks and
drawings (an add-on)."""

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import Algorithm, Step, only, then, transpose

__all__ = ["ALGORITHMS", "Algorithm", "Step", "only", "then", "transpose"]
