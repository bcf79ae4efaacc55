"""NodeStore: all ranks of a node share one copy of the parameters, and one of the summed gradients.

rank 0   flat_grad  [ a0 | b0 ]──┐    total            flat
rank 1   flat_grad  [ a1 | b1 ]──┴──► [ a | b ] ─────► [ A | B ]
                                       0   1            0   1      summed and updated by rank
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from nnmpi.arrays.backend import CPU, Array
from nnmpi.comm import NoRoomError
from nnmpi.nn.store import FlatStore, Shard, shards_of
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.local import LocalStore, StoreSpec
from nnmpi.parallel.wire import Transfer


class NodeStore(LocalStore):
    """Keeps parameters and summed gradients in memory that a node's ranks share."""

    def __init__(self, spec: StoreSpec) -> None:
        self._node = node = spec.dp.node()
        self._first_node, self._is_first_of_node = 0 in node, node[0] == spec.dp.rank
        self._is_apart = False
        super().__init__(spec)
        self._parameters.barrier()

    def allocate(self) -> None:
        self._window = self.dp.shared(self.length, self.dtype)
        try:
            self._parameters = self.dp.node_memory(self.length, self.dtype)
        except NoRoomError:
            self._window.free()
            raise
        me, cuts = self._node.index(self.dp.rank), self.buckets.all
        summed_here = (self._window.own(start, stop, me) for start, stop, _ in cuts)
        self.shards = shards_of(sorted((s.start, s.stop) for s in summed_here))
        self._mine = self._window.mine, self.views(self._window.mine)
        self._total = self._window.total, self.views(self._window.total)
        self.flat, (self.flat_grad, self.grad_memories) = self._parameters.array, self._mine
        self.values = self.views(self.flat)
        self.allocate_masters()

    def parameter_bytes(self) -> int:
        return super().parameter_bytes() * self._is_first_of_node

    def gradient_bytes(self) -> int:
        """Returns the bytes of this rank's gradients. On the first rank of a node they include the
        sums, which the ranks of the node share."""
        return super().gradient_bytes() * (1 + self._is_first_of_node)

    def begin(self) -> None:
        if self._is_apart:
            raise ValueError(
                "a step cannot begin within trainer.gathered_parameters(): leave it first"
            )
        self.flat_grad, self.grad_memories = self._mine
        super().begin()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """A context in which each rank has its own copy of the parameters, which it may write. At
        the end, the copy of the node's first rank becomes the parameters of the node."""
        if self._is_apart:  # nested
            yield
            return
        shared, self._is_apart = self.flat, True
        try:
            self.flat = shared.copy()
            self.values = self.views(self.flat)
            self._parameters.barrier()
            yield
            if self._is_first_of_node:
                shared[...] = self.flat
            self._parameters.barrier()
        finally:
            self.flat, self.values, self._is_apart = shared, self.views(shared), False

    def start(self, b: int) -> Transfer:
        start, stop, _ = self.buckets.all[b]
        return self._window.start(start, stop)

    def finish(self, b: int) -> None:
        if not b:  # the last one
            self.flat_grad, self.grad_memories = self._total

    def squares(self, shards: Sequence[Shard]) -> Array:
        """Returns the sum over all ranks of the squares of the summed gradients, times `factor`:
        ranks of the first node add up their `shards`, others, which have the same, contribute 0."""
        squares_here = super().squares(shards) if self._first_node else 0
        total = np.array([squares_here], "float64")
        self.dp.all_reduce(total, "doubling")
        return total[0]

    def wait_for_updates(self) -> None:
        with waiting("settle"):
            self._parameters.barrier()

    def close(self) -> None:
        FlatStore(self.parameters, self.flat.dtype, CPU)
        self._parameters.barrier()  # no rank frees the window while another still copies from it
        # this store and its optimizer still have views, which nobody reads any more
        self._parameters.free(check=False)
        self._window.free(check=False)
