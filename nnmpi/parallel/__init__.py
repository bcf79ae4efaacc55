"""Training on many ranks: everything that combines computing with communication.

Here: which part of the model and the work each rank has (`arrangement`), and what executes it:
steps, memory of parameters, sums of gradients, pipelines, tensor parallelism. `strategies.py` alone
knows all strategies. Not here: what a step costs (`addons.planning`).
"""

from nnmpi.addons import finder

__path__.append(finder.ENTRY)
