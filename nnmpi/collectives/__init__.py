"""Collective algorithms as plain data, the proof that they are correct, and their cost.

Here: steps of sends and sums as literal values, `ALGORITHMS` by name, a symbolic proof for any
number of ranks, the price of a collective on a network, and graphs of neighbours that gossip
(`gossip.GRAPHS`). Not here: their execution (`comm.allreduce`), simulated networks and drawings
(an add-on).
"""

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import Algorithm, Step, only, then, transpose

__all__ = ["ALGORITHMS", "Algorithm", "Step", "only", "then", "transpose"]
