"""The bytes of optimizer state, buffers and frozen parameters on a rank, from element counts."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from nnmpi.arrays.dtypes import is_float
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import OPTIMIZERS, Optimizer, of_config
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_model import HeldVariable


def bytes_of_other(a: Arrangement, held: HeldVariable) -> int:
    """Returns the bytes of a frozen parameter or of a buffer."""
    variable = a.graph.variables[held.variable]
    dtype = np.dtype(variable.dtype)
    if is_float(dtype):
        dtype = a.dtype if variable.is_parameter else a.updated_dtype
    return held.size * dtype.itemsize


def optimizer_bytes(a: Arrangement, n: int) -> int:
    """Returns the bytes of optimizer state, and of masters in 16-bit training, for n updated
    elements."""
    return (state_array_count(a.config) + a.is_mixed) * n * a.updated_dtype.itemsize


def state_array_count(config: Config) -> int:
    """Returns the number of state arrays per parameter of the optimizer that `config` asks for."""
    return _state_array_count(OPTIMIZERS[config.optimizer], config.optimizer, config.momentum)


@lru_cache(maxsize=64)
def _state_array_count(rule: Callable[..., Optimizer], name: str, momentum: float) -> int:
    """Returns the number of state arrays that an optimizer makes; cached by its function, since a
    user may replace the function under the same name."""
    config = Config(optimizer=name, momentum=momentum)
    return len(of_config(config, [("", Parameter(np.zeros(1)))]).sums)
