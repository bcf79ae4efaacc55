"""ServedStore: the parameters of a rank where servers update them, a slice each."""

from collections.abc import Sequence

from nnmpi.backend import CPU, Array
from nnmpi.collectives.step import cut
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, Shard, shards_of, spans_of
from nnmpi.parallel.stores import LocalStore


def server_slices(parameters: Sequence[Parameter], servers: int) -> list[slice]:
    """The part of a flat buffer that each server updates."""
    n = spans_of([p.room for p in parameters])[-1][1]
    return [slice(cut(n, servers, k), cut(n, servers, k + 1)) for k in range(servers)]


class ServedStore(LocalStore):
    """Whole buffers, of which the optimizer updates `own`: a server's slice; for a worker, nothing.

    `gradient` is the gradient of that slice for the next step.
    """

    def __init__(self, parameters: Sequence[Parameter], own: slice) -> None:
        super().__init__(parameters, parameters[0].data.dtype, CPU)
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
        FlatStore(self.parameters, self.flat.dtype, CPU)
