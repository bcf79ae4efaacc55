"""NodeStore: one copy of the parameters for all ranks of a node; nothing is sent within it.

rank 0   flat_grad  [ a0 | b0 ]──┐    total            flat
rank 1   flat_grad  [ a1 | b1 ]──┴──► [ a | b ] ─────► [ A | B ]
                                       0   1            0   1      summed and updated by rank
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnmpi.backend import CPU, Array
from nnmpi.comm import Comm, NoRoomError, Work
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, shards_of
from nnmpi.parallel.stores.buckets import Buckets
from nnmpi.parallel.stores.local import LocalStore, Stretch


class NodeStore(LocalStore):
    """All buckets are summed over the ranks of `comm`, through a window that its nodes share."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        scalars: int,
        comm: Comm,
        buckets: Buckets,
    ) -> None:
        self._comm, self._buckets, self._first_node = comm, buckets, 0 in comm.node()
        self._is_first_of_node = comm.node()[0] == comm.rank
        super().__init__(parameters, dtype, CPU, scalars)
        self._parameters.barrier()

    def allocate(self) -> None:
        self._window = self._comm.shared(self.length, self.dtype)
        try:
            self._parameters = self._comm.node_memory(self.length, self.dtype)
        except NoRoomError:
            self._window.free()
            raise
        own = (self._window.own(start, stop) for start, stop, _ in self._buckets)
        self.shards = shards_of(sorted((s.start, s.stop) for s in own))
        self._mine = self._window.mine, self.views(self._window.mine)
        self._total = self._window.total, self.views(self._window.total)
        self.flat, (self.flat_grad, self.slots) = self._parameters.array, self._mine
        self.values = self.views(self.flat)

    def parameter_bytes(self) -> int:
        return super().parameter_bytes() * self._is_first_of_node

    def gradient_bytes(self) -> int:
        """The memory of this rank's gradients, and on the first rank that of the node's sums."""
        return super().gradient_bytes() * (1 + self._is_first_of_node)

    def begin(self) -> None:
        self.flat_grad, self.slots = self._mine
        super().begin()

    def start(self, b: int) -> Work:
        """Starts the sum of a bucket."""
        start, stop, _ = self._buckets[b]
        return self._window.start(start, stop)

    def show_sums(self) -> None:
        self.flat_grad, self.slots = self._total

    def squares(self, counted: Sequence[Stretch]) -> Array:
        """Each rank adds up what it owns; only the first node counts, since all hold the same."""
        own = super().squares(counted) if self._first_node else 0
        total = np.array([own], "float64")
        self._comm.all_reduce(total, "doubling")
        return total[0]

    def settle(self) -> None:
        self._parameters.barrier()

    def close(self) -> None:
        FlatStore(self.parameters, self.flat.dtype, CPU)
        self._parameters.barrier()
        self._parameters.free()
        self._window.free()
