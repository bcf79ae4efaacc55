"""Masters: float32 values that the optimizer updates, of which parameters of 16 bits are the
rounding.

    F, B          values and gradients in 16 bits; losses, and so gradients, times the loss scale
    sum           in 16 bits, with partial sums in float32, or narrow ones
    update        in one pass over memory (`kernels/steps.py`): masters whose rounding is not the
                  value any more take the value, are moved by gradients that become float32,
                  unscaled and clipped, and values = masters, rounded

A `LocalStore` keeps them, if there is a loss scale. A rank has the masters of what it updates: all
of them in replicas, a part on a node that shares its parameters and in ZeRO. Files, digests and
snapshots have masters. Values that are written from outside win over masters of which they are not
the rounding.

bytes a parameter (Adam)    values   gradients   masters and sums
replicas                    2        2           12
zero 1                      2        2           12 / d
zero 2                      2        4 / d       12 / d
zero 3                      -        4 / d       12 / d

Zero 3 keeps masters alone between steps, and rounds them where it gathers them.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels.precision import merge_loop
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.single_store import SingleStore

MASTER = np.dtype(np.float32)


def merged(masters: Array, values: Array) -> Array:
    """The masters, but for those of which these values are not the rounding."""
    found = masters.copy()
    merge_loop(found, values)
    return found


def freeze(parameters: Iterable[Parameter], trained: Iterable[Parameter], dtype: Any) -> None:
    """Gives parameters that are not trained the type of the others; they have no masters."""
    for p in {*parameters} - {*trained}:
        p.move(SingleStore(p.data.astype(dtype)), 0)
