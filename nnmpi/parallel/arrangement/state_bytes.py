"""Bytes of what a rank updates, and of what it has besides: by their numbers, for plans."""

import numpy as np

from nnmpi.arrays.dtypes import is_float
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_model import HeldVariable


def bytes_of_other(a: Arrangement, held: HeldVariable) -> int:
    """The bytes of a frozen parameter or of a buffer."""
    variable = a.graph.variables[held.variable]
    dtype = np.dtype(variable.dtype)
    if is_float(dtype):
        dtype = a.dtype if variable.is_parameter else a.updated_dtype
    return held.size * dtype.itemsize


def running_sums(a: Arrangement, n: int) -> int:
    """The bytes of the optimizer for n numbers that it updates."""
    return (sums_of_optimizer(a.config) + a.is_mixed) * n * a.updated_dtype.itemsize


def sums_of_optimizer(config: Config) -> int:
    """How many running sums each number has."""
    of_sgd = int(config.momentum > 0)
    return {"sgd": of_sgd, "adam": 2, "adamw": 2, "rmsprop": 1}[config.optimizer]
