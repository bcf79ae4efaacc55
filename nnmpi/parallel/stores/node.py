"""NodeStore: one copy of the parameters for all ranks of a node; nothing is sent within it.

rank 0   flat_grad  [ a0 | b0 ]──┐    total            flat
rank 1   flat_grad  [ a1 | b1 ]──┴──► [ a | b ] ─────► [ A | B ]
                                       0   1            0   1      summed and updated by rank
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nnmpi.backend import CPU, Array
from nnmpi.comm import Comm, NoRoomError
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, length
from nnmpi.parallel.stores.local import Bucket, LocalStore, Stretch, Sum, squares


class NodeStore(LocalStore):
    """All buckets are summed over the ranks of `comm`, through a window that its nodes share."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        head: int,
        comm: Comm,
        buckets: Sequence[Bucket],
    ) -> None:
        n = length(parameters, head)
        self._window = comm.shared(n, dtype)
        try:
            self._parameters = comm.node_memory(n, dtype)
        except NoRoomError:
            self._window.free()
            raise
        own = sorted((self._window.own(b.start, b.stop) for b in buckets), key=lambda s: s.start)
        self._own = [(s.start, s.stop) for s in own]
        self._comm, self._first_node = comm, 0 in comm.node()
        self._is_first_of_node = comm.node()[0] == comm.rank
        memory = self._parameters.array, self._window.mine
        super().__init__(parameters, dtype, CPU, head, memory)
        self._mine = self.flat_grad, self.slots
        self._total = self._window.total, self.views(self._window.total)
        self._parameters.barrier()

    def owned(self, start: int, end: int) -> Iterator[tuple[Array, Array]]:
        for lo, hi in self.own_stretches(start, end):
            yield self.flat[lo:hi], self.flat_grad[lo:hi]

    def own_stretches(self, start: int, end: int) -> Iterator[Stretch]:
        for a, b in self._own:
            lo, hi = max(a, start), min(b, end)
            if lo < hi:
                yield lo, hi

    def parameter_bytes(self) -> int:
        return super().parameter_bytes() * self._is_first_of_node

    def gradient_bytes(self) -> int:
        """Its own gradients, and the sums of the node."""
        return super().gradient_bytes() * (1 + self._is_first_of_node)

    def begin(self) -> None:
        self.flat_grad, self.slots = self._mine
        super().begin()

    def start(self, bucket: Bucket) -> Sum:
        return self._window.start(bucket.start, bucket.stop)

    def summed(self) -> None:
        self.flat_grad, self.slots = self._total

    def squares(self, stretches: Sequence[Stretch]) -> Array:
        """Each rank adds up what it owns; only the first node counts, since all hold the same."""
        parts = [squares(g) for lo, hi in stretches for _, g in self.owned(lo, hi)]
        total = CPU.xp.array([sum(parts) if self._first_node else 0], "float64")
        self._comm.all_reduce(total, "doubling")
        return total[0]

    def settle(self) -> None:
        self._parameters.barrier()

    def close(self) -> None:
        FlatStore(self.parameters, self.flat.dtype, CPU)
        self._parameters.barrier()
        self._parameters.free()
        self._window.free()
