"""Mixed precision: stores whose parameters have 16 bits, and float32 masters that are updated.

    step begins   masters whose rounding is not the value any more take the value
    F, B          values and gradients in 16 bits; losses, and so gradients, times the loss scale
    sum           in 16 bits, with partial sums in float32
    update        the optimizer moves masters, by gradients in float32: unscaled, clipped
    settle        values = masters, rounded

A rank has the masters of what it updates: all of them in replicas, a part on a node that shares
its parameters and in ZeRO. Files, digests and snapshots have masters. Values that are written from
outside win over masters of which they are not the rounding.

bytes a parameter (Adam)    values   gradients   masters and sums
replicas                    2        2           12
zero 1                      2        2           12 / d
zero 2                      2        4 / d       12 / d
zero 3                      -        4 / d       12 / d

Loss, stop and uses do not travel with gradients in 16 bits: they are one short sum a step.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array, Backend
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.store import Shard, within
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.stores import Buckets, LocalStore, NodeStore, Stretch, piece_of, scalar_count
from nnmpi.parallel.zero.slots import ShardedGradientStore, ShardedParameterStore
from nnmpi.parallel.zero.store import ShardedStore

MASTER = np.dtype(np.float32)


def merged(masters: Array, values: Array) -> Array:
    """The masters, but for those of which these values are not the rounding."""
    same = masters.astype(values.dtype) == values
    return backend.xp_of(values).where(same, masters, values.astype(MASTER))


class MasterStore(LocalStore):
    """What stores of mixed precision add to another one: the first base of each of them.

    masters   float32, of the shards of this rank, packed
    factor    what gradients are multiplied by when they are read
    """

    scaler: Scaler
    factor = 1.0

    def allocate(self) -> None:
        super().allocate()
        xp, self.updated_dtype = self.on.xp, MASTER
        self.masters = xp.zeros(self.shards[-1].packed.stop if self.shards else 0, MASTER)
        self._scratch = xp.zeros(max(min(len(self.masters), piece_of(self.on)), 1), MASTER)

    def begin(self) -> None:
        super().begin()
        self.factor = 1.0 / self.scaler.now.scale
        self.take_written()

    # ---- values and masters

    def take(self, i: int, p: Parameter) -> None:
        super().take(i, p)
        self._keep(i, memory_order(p, self.on.asarray(p.data)))

    def _keep(self, i: int, values: Array) -> None:
        """Takes over values of parameter i, in the order of its memory and in any type."""
        start = self.spans[i][0]
        for shard in within(self.shards, start, start + values.size):
            own = self.masters[shard.packed]
            own[...] = merged(own, values[shard.start - start : shard.stop - start])

    def take_written(self) -> None:
        """Takes over what was written into values since they were rounded."""
        for shard in self.pieces(self.shards):
            own = self.masters[shard.packed]
            own[...] = merged(own, self.flat[shard.start : shard.stop])

    def round(self) -> None:
        """Writes the values of what this rank updates."""
        for shard in self.shards:
            self.flat[shard.start : shard.stop] = self.masters[shard.packed]

    def settle(self) -> None:
        self.round()
        super().settle()

    def readable(self, i: int) -> list[Stretch]:
        start, size = self.spans[i][0], self.parameters[i].size
        own = within(self.shards, start, start + size)
        return [(shard.start - start, shard.stop - start) for shard in own] or [(0, 0)]

    def numbers(self, i: int, lo: int, hi: int) -> Array:
        start = self.spans[i][0]
        values, own = super().numbers(i, lo, hi), [*within(self.shards, start + lo, start + hi)]
        return merged(self.masters[own[0].packed], values) if own else self.masters[:0]

    # ---- what the optimizer reads

    def owned(self, start: int, end: int) -> Iterator[tuple[Shard, Array, Array]]:
        for piece in self.pieces(self.own_shards(start, end)):
            yield piece, self.shard_values(piece), self.shard_gradient(piece)

    def pieces(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        most = len(self._scratch)
        for start, stop, at in shards:
            for lo in range(start, stop, most):
                yield Shard(lo, min(lo + most, stop), at + lo - start)

    def shard_values(self, shard: Shard) -> Array:
        return self.masters[shard.packed]

    def shard_gradient(self, shard: Shard) -> Array:
        """The gradients of a piece, in memory that the next one takes."""
        own = self._scratch[: shard.stop - shard.start]
        own[...] = self.summed(shard)
        own *= self.factor
        return own

    def summed(self, shard: Shard) -> Array:
        return super().shard_gradient(shard)

    def scale_gradients(self, factor: float) -> None:
        self.factor *= factor

    def whole_gradient(self, i: int) -> Array:
        return super().whole_gradient(i).astype(MASTER) * self.factor

    def slot_bytes(self) -> int:
        return super().slot_bytes() + int(self._scratch.nbytes)


class _Replicated(MasterStore):
    """Scalars are summed over dp on the host, in one short all-reduce."""

    dp: Comm

    def allocate(self) -> None:
        super().allocate()
        self._own_scalars = self.on.xp.zeros(scalar_count(self.parameters), "float64")

    @property
    def scalars(self) -> Array:
        return self._own_scalars

    def totals(self, counted: Sequence[Stretch]) -> Array:
        xp = self.on.xp
        squares = xp.asarray(self.squares(counted), "float64").reshape(1)
        row = np.array(backend.to_host(xp.concatenate((self.scalars, squares))))
        self.dp.all_reduce(row[:-1], "doubling")
        return row


class MixedStore(_Replicated, LocalStore):
    """A whole copy on this rank, and its masters."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        on: Backend,
        buckets: Buckets,
        dp: Comm,
        scaler: Scaler,
    ) -> None:
        self.dp, self.scaler = dp, scaler
        super().__init__(parameters, dtype, on, 0, buckets)


class MixedNodeStore(_Replicated, NodeStore):
    """One memory for a node; each rank has the masters of the part that it updates."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        buckets: Buckets,
        dp: Comm,
        scaler: Scaler,
    ) -> None:
        self.dp, self.scaler = dp, scaler
        super().__init__(parameters, dtype, 0, buckets, dp)


class MixedShardedStore(MasterStore, ShardedStore):
    """ZeRO 1: values are gathered in 16 bits."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        on: Backend,
        buckets: Buckets,
        dp: Comm,
        gathers: Comm,
        scaler: Scaler,
    ) -> None:
        self.scaler = scaler
        super().__init__(parameters, dtype, on, buckets, dp, gathers)


class MixedShardedGradientStore(MixedShardedStore, ShardedGradientStore):
    """ZeRO 2: micro-batches are scattered in 16 bits, and added up in float32."""

    def whole_gradient(self, i: int) -> Array:
        return ShardedGradientStore.whole_gradient(self, i)


class MixedShardedParameterStore(MixedShardedGradientStore, ShardedParameterStore):
    """ZeRO 3: between steps there are masters only, which are rounded when they are gathered."""

    def allocate(self) -> None:
        super().allocate()
        self.flat = self.masters

    def parameter_bytes(self) -> int:
        return 0

    def take_written(self) -> None:
        """A rank that writes values has told the store."""

    def round(self) -> None:
        """Values are rounded when they are gathered."""


MIXED_SHARDED = {
    "zero 1": MixedShardedStore,
    "zero 2": MixedShardedGradientStore,
    "zero 3": MixedShardedParameterStore,
}
"""The stores of ZeRO, as arrangements name them."""


def freeze(parameters: Iterable[Parameter], trained: Iterable[Parameter], dtype: Any) -> None:
    """Gives parameters that are not trained the type of the others; they have no masters."""
    for p in {*parameters} - {*trained}:
        p.move(SingleStore(p.data.astype(dtype)), 0)
