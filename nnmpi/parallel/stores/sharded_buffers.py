"""ShardedBuffers: what the values and the gradients of ZeRO both know of flat buffers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi.backend import Array, Backend
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, Shard
from nnmpi.parallel.arrangement.flat_buffer import Stretch
from nnmpi.parallel.recorder import current_recorder
from nnmpi.parallel.stores.buckets import Buckets
from nnmpi.parallel.stores.masters import Masters, NoMasters
from nnmpi.parallel.wire import Transfer, Wire

GATHER = "ring"


class ShardedBuffers(NamedTuple):
    """Where parameters, buckets and this rank's shards are, and the wires of the ranks along dp.

    flat       [ bucket 0     | bucket 1        ]      shards  [ ####              ###         ]
    in_bucket  [ ####         ] [ ###           ]      packed  [ #### | ### ]

    shards     this rank's shard of each bucket
    in_bucket  where it is in its bucket
    sums       carries gradients; gathers: carries values, at any time
    """

    parameters: Sequence[Parameter]
    spans: Sequence[Stretch]
    buckets: Buckets
    shards: Sequence[Shard]
    in_bucket: Sequence[slice]
    dtype: np.dtype[Any]
    on: Backend
    sums: Wire
    gathers: Wire
    masters: Masters | NoMasters

    @property
    def length(self) -> int:
        """The length of a buffer of everything."""
        return self.spans[-1][1]

    @property
    def own_length(self) -> int:
        """The length of a buffer of this rank's shards."""
        last = self.shards[-1]
        return last.at + last.stop - last.start

    def view(self, memory: Array, i: int, origin: int = 0) -> Array:
        """Parameter i in memory that begins at `origin` of a buffer of everything."""
        return FlatStore.view(memory, self.parameters[i], self.spans[i][0] - origin)

    def views(self, memory: Array) -> list[Array]:
        """All parameters in a buffer of everything."""
        return [self.view(memory, i) for i in range(len(self.parameters))]

    def bucket_views(self, memory: Array, b: int) -> dict[int, Array]:
        """The parameters of bucket b, which is at the start of this memory."""
        origin = self.buckets[b].start
        return {i: self.view(memory, i, origin) for i in self.buckets.members[b]}


def wait_for_gather(work: Transfer) -> None:
    """Waits for a gather, and notes how long."""
    recorder = current_recorder.get()
    began = recorder.now()
    work.wait()
    recorder.add("gather", began)
