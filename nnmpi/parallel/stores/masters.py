"""Masters: float32 values that the optimizer updates, of which parameters of 16 bits are the
rounding.

    step begins   masters whose rounding is not the value any more take the value
    F, B          values and gradients in 16 bits; losses, and so gradients, times the loss scale
    sum           in 16 bits, with partial sums in float32, or narrow ones
    update        the optimizer moves masters, by gradients in float32: unscaled, clipped
    settle        values = masters, rounded

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

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nnmpi.backend import Array, Backend
from nnmpi.kernels.halves import cast_loop, merge_loop
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.store import FlatStore, Shard, ShardArrays
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.arrangement.flat_buffer import piece_of

MASTER = np.dtype(np.float32)


def merged(masters: Array, values: Array) -> Array:
    """The masters, but for those of which these values are not the rounding."""
    found = masters.copy()
    merge_loop(found, values)
    return found


class NoMasters:
    """The optimizer updates the values themselves, by the gradients as they were summed."""

    array: Array | None = None
    scratch_bytes, factor = 0, 1.0

    def begin(self, flat: Array) -> None:
        """A step begins."""

    def round_to(self, flat: Array) -> None:
        """All updates are made."""

    def of(self, shard: Shard, values: Array) -> Array:
        """What the optimizer is to update, where a shard has these values."""
        return values

    def updated(self, shard: Shard, values: Array) -> Array:
        """The memory that the optimizer updates for a shard, whose values are in `values`."""
        return values

    def owned(self, store: FlatStore, shards: Iterable[Shard]) -> Iterator[ShardArrays]:
        """(shard, what the optimizer updates, the gradient by which it does)."""
        for shard in shards:
            yield shard, store.shard_values(shard), store.shard_gradient(shard)

    def scale(self, store: FlatStore, factor: float) -> None:
        """Multiplies all gradients that the optimizer reads."""
        for *_, gradient in store.owned(store.spans[0][0], store.spans[-1][1]):
            store.scale(gradient, factor)


class Masters:
    """The masters of the shards of this rank, packed.

    factor    what gradients are multiplied by when they are read
    """

    def __init__(self, shards: Sequence[Shard], array: Array, on: Backend, scaler: Scaler) -> None:
        self._shards, self._scaler, self.array = shards, scaler, array
        self._scratch = on.xp.zeros(max(min(len(array), piece_of(on)), 1), MASTER)
        self.scratch_bytes = int(self._scratch.nbytes)
        self.factor = 1.0 / scaler.now.scale

    def begin(self, flat: Array) -> None:
        """Takes over what was written into values since they were rounded."""
        self.factor = 1.0 / self._scaler.now.scale
        if flat is not self.array:  # else who writes values tells the store
            for shard in self.pieces(self._shards):
                merge_loop(self.array[shard.packed], flat[shard.start : shard.stop])

    def round_to(self, flat: Array) -> None:
        """Writes the values of what this rank updates."""
        if flat is not self.array:
            for shard in self._shards:
                cast_loop(self.array[shard.packed], flat[shard.start : shard.stop])

    def of(self, shard: Shard, values: Array) -> Array:
        """The masters of a shard, but for those of which these values are not the rounding."""
        return merged(self.array[shard.packed], values)

    def updated(self, shard: Shard, values: Array) -> Array:
        """The memory of the masters of a shard."""
        return self.array[shard.packed]

    def owned(self, store: FlatStore, shards: Iterable[Shard]) -> Iterator[ShardArrays]:
        """The shards in pieces, with their masters; each gradient is in memory that the next one
        takes."""
        for piece in self.pieces(shards):
            summed = store.shard_gradient(piece)
            gradient = self._scratch[: len(summed)]
            cast_loop(summed, gradient)
            if self.factor != 1:
                gradient *= self.factor
            yield piece, self.array[piece.packed], gradient

    def pieces(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """The shards, in pieces as long as the memory of gradients."""
        most = len(self._scratch)
        for start, stop, at in shards:
            for lo in range(start, stop, most):
                yield Shard(lo, min(lo + most, stop), at + lo - start)

    def scale(self, store: FlatStore, factor: float) -> None:
        """Gradients are multiplied when they are read."""
        self.factor *= factor


def freeze(parameters: Iterable[Parameter], trained: Iterable[Parameter], dtype: Any) -> None:
    """Gives parameters that are not trained the type of the others; they have no masters."""
    for p in {*parameters} - {*trained}:
        p.move(SingleStore(p.data.astype(dtype)), 0)
