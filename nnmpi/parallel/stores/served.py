"""ServedStore: the store of a parameter server and of its workers."""

from nnmpi.arrays.backend import Array
from nnmpi.nn.store import FlatStore, Shard, shards_of
from nnmpi.parallel.stores.local import LocalStore, StoreSpec


class ServedStore(LocalStore):
    """Whole buffers, of which the optimizer updates `own`: a server's slice; for a worker, nothing.

    `gradient` is the gradient of that slice for the next step.
    """

    def __init__(self, spec: StoreSpec, own: slice) -> None:
        super().__init__(spec)
        self.own, self.shards = own, shards_of([(own.start, own.stop)])
        self.gradient = self.flat_grad[own]

    def shard_gradient(self, shard: Shard) -> Array:
        return self.gradient[shard.packed]

    def gradient_bytes(self) -> int:
        """The whole gradient of a worker, or the gradient of a server's slice."""
        return self.gradient.nbytes or super().gradient_bytes()

    def close(self) -> None:
        """Parameters move to a store of which any optimizer updates all."""
        self.begin()
        FlatStore(self.parameters, self.flat.dtype, self.on)
