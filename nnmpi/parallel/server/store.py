"""ServedStore: the parameters of a rank where servers update them, a slice each."""

from collections.abc import Iterator, Sequence

from nnmpi.backend import CPU, Array
from nnmpi.collectives.step import cut
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, length
from nnmpi.parallel.stores.local import LocalStore, Stretch


def server_slices(parameters: Sequence[Parameter], servers: int) -> list[slice]:
    """The part of a flat buffer that each server updates."""
    n = length(parameters)
    return [slice(cut(n, servers, k), cut(n, servers, k + 1)) for k in range(servers)]


class ServedStore(LocalStore):
    """Whole buffers, of which the optimizer updates `own`: a server's slice; for a worker, nothing.

    `gradient` is the gradient of that slice for the next step.
    """

    def __init__(self, parameters: Sequence[Parameter], own: slice) -> None:
        super().__init__(parameters, parameters[0].data.dtype, CPU)
        self.own = own
        self.gradient = self.flat_grad[own]

    def owned(self, start: int, end: int) -> Iterator[tuple[Array, Array]]:
        first = self.own.start
        for lo, hi in self.own_stretches(start, end):
            yield self.flat[lo:hi], self.gradient[lo - first : hi - first]

    def own_stretches(self, start: int, end: int) -> Iterator[Stretch]:
        lo, hi = max(start, self.own.start), min(end, self.own.stop)
        if lo < hi:
            yield lo, hi

    def gradient_bytes(self) -> int:
        """The whole gradient of a worker, or the gradient of a server's slice."""
        return self.gradient.nbytes or super().gradient_bytes()

    def close(self) -> None:
        """Parameters move to a store of which any optimizer updates all."""
        self.begin()
        FlatStore(self.parameters, self.flat.dtype, CPU)
