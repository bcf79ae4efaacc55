"""ReplicaStore: a whole copy of parameters and gradients on each rank."""

from collections.abc import Sequence
from typing import Any

from nnmpi.backend import CPU
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.stores.local import Bucket, LocalStore, Sum


class ReplicaStore(LocalStore):
    """Sums are all-reduces in place, by one algorithm."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        head: int,
        buckets: Sequence[Bucket],
        algorithm: str,
    ) -> None:
        set_up(buckets, dtype, algorithm)
        super().__init__(parameters, dtype, CPU, head)
        self._algorithm = algorithm

    def start(self, bucket: Bucket) -> Sum:
        return bucket.comm.start(self.flat_grad[bucket.start : bucket.stop], self._algorithm)


def set_up(buckets: Sequence[Bucket], dtype: Any, algorithm: str) -> None:
    """Comm chooses its ways and takes its memory now, or finds no room.

    The longest first, in an order that all ranks of all comms share.
    """
    for b in sorted(buckets, key=lambda b: (b.start - b.stop, b.comm.name)):
        b.comm.all_reduce(CPU.xp.zeros(b.stop - b.start, dtype), algorithm)
