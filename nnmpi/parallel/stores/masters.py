"""Masters: float32 values that the optimizer updates, of which parameters of 16 bits are the
rounding.

    F, B          values and gradients in 16 bits; losses, and so gradients, times the loss scale
    sum           in 16 bits, with partial sums in float32, or narrow ones
    update        in one pass over memory (`kernels/steps.py`): masters whose rounding is not the
                  value any more take the value, are moved by gradients that become float32,
                  unscaled and clipped, and values = masters, rounded

A store has them, or `NoMasters`, which has the same methods. A rank has the masters of what it
updates: all of them in replicas, a part on a node that shares its parameters and in ZeRO. Files,
digests and snapshots have masters. Values that are written from outside win over masters of which
they are not the rounding.

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
from nnmpi.arrays.kernels.steps import Mixed
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.store import FlatStore, Shard
from nnmpi.optim.loss_scale import Scaler

MASTER = np.dtype(np.float32)


def merged(masters: Array, values: Array) -> Array:
    """The masters, but for those of which these values are not the rounding."""
    found = masters.copy()
    merge_loop(found, values)
    return found


class NoMasters:
    """The optimizer updates the values themselves, by the gradients as they were summed; in a step
    that the device decides, with its factor."""

    array: Array | None = None
    factor: float | Array = 1.0

    def begin(self) -> None:
        """A step begins."""
        self.factor = 1.0

    def of(self, shard: Shard, values: Array) -> Array:
        """The values that the optimizer is to update, where a shard has these values."""
        return values

    def updated(self, shard: Shard, values: Array) -> Array:
        """The memory that the optimizer updates for a shard, whose values are in `values`."""
        return values

    def mixed(self, values: Array) -> Mixed:
        """The factor of gradients in an update; there are no values in 16 bits besides."""
        return Mixed(factor=self.factor)

    def scale(self, store: FlatStore, factor: float) -> None:
        """Multiplies all gradients that the optimizer reads."""
        for *_, gradient in store.owned(store.spans[0][0], store.spans[-1][1]):
            store.scale(gradient, factor)


class Masters:
    """The masters of the shards of this rank, packed.

    factor    what gradients are multiplied by when they are read, or what the device has decided
    """

    def __init__(self, array: Array, scaler: Scaler) -> None:
        self._scaler, self.array = scaler, array
        self.begin()

    def begin(self) -> None:
        """Gradients of this step have the loss scale of now."""
        self.factor: float | Array = 1.0 / self._scaler.now.scale

    def of(self, shard: Shard, values: Array) -> Array:
        """The masters of a shard, but for those of which these values are not the rounding."""
        return merged(self.array[shard.packed], values)

    def updated(self, shard: Shard, values: Array) -> Array:
        """The memory of the masters of a shard."""
        return self.array[shard.packed]

    def mixed(self, values: Array) -> Mixed:
        """The values of a shard, if they are not its masters, and what gradients are multiplied
        by."""
        return Mixed(None if values.dtype == MASTER else values, self.factor)

    def scale(self, store: FlatStore, factor: float) -> None:
        """Gradients are multiplied when they are read."""
        self.factor *= factor


def freeze(parameters: Iterable[Parameter], trained: Iterable[Parameter], dtype: Any) -> None:
    """Gives parameters that are not trained the type of the others; they have no masters."""
    for p in {*parameters} - {*trained}:
        p.move(SingleStore(p.data.astype(dtype)), 0)
