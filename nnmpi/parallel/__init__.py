"""Training on many ranks: everything that combines computing with communication.

Here: which part of the model and the work each rank has (`arrangement`), and what executes it:
steps, memory of parameters, sums of gradients, pipelines, tensor parallelism. Each rank has a
strategy: the object that runs its training steps in one of the ways to be parallel. `strategies.py`
builds it, and is the only file that knows them all. Not here: what a step costs
(`addons.planning`), epochs (`run`), files and reports (`io`), messages and collectives (`comm`).
"""

from nnmpi.addons import finder

__path__.append(finder.ENTRY)
