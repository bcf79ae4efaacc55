"""PARTS: the functions by which a run on CUDA differs from one on a CPU."""

from nnmpi.addons.cuda.deferred_steps import deferred
from nnmpi.addons.cuda.graphs import captured
from nnmpi.addons.cuda.tf32 import set_up
from nnmpi.parallel.arrangement.cluster import DeviceParts

PARTS = DeviceParts(set_up, deferred, captured)
