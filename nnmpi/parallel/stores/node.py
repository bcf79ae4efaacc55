"""Where the parameters and gradients of a job live, and how stretches of gradients are summed.

           flat                              flat_grad
Single     this rank's                       this rank's: there is nothing to sum
Replica    a copy on each rank               the rank's; sums of all ranks take its place
NodeStore  one memory for a node             the rank's segment of a window; sums have one memory
                                             for a node, and each rank moves the parameters whose
                                             gradients it has added up

In each, numbers that ride on the sum lie in the head, before the first gradient. The stores of
shards (`shards.Stack`) and of servers (`roles.SliceStore`) are beside those who use them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from nnmpi import backend
from nnmpi.backend import CPU, Array, Backend
from nnmpi.comm import Comm, NoRoomError
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, length

Bounds = Sequence[tuple[int, int]]
"""Stretches of a flat buffer that are summed together, in the order in which they are complete."""


BLOCK = 8192  # numbers; OpenBLAS takes several threads for a dot product of more than 10,000


class Sum(Protocol):
    """A sum under way."""

    def poll(self) -> bool: ...
    def wait(self) -> None: ...


class Complete:
    """A sum of one."""

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class Single(FlatStore):
    """The parameters and gradients of the only rank."""

    def begin(self) -> None:
        """From here on gradients are written."""

    def start(self, lo: int, hi: int) -> Sum:
        """Begins to sum a stretch of gradients over the ranks."""
        return Complete()

    def summed(self) -> None:
        """All sums have arrived: from here on gradients are read."""

    def squares(self) -> Array:
        """The sum of the squares of all gradients: the same bits on every rank."""
        return _squares(self.flat_grad[self.spans[0][0] :])

    def settle(self) -> None:
        """The parameters of this rank have moved; after it, all have."""

    def close(self) -> None:
        """Gives back what the store took; parameters go back to memory of this rank's own."""


class Replica(Single):
    """A whole copy of parameters and gradients on each rank."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        head: int,
        comm: Comm,
        bounds: Bounds,
        algorithm: str,
    ) -> None:
        longest_first = sorted(bounds, key=lambda edges: edges[0] - edges[1])
        for lo, hi in longest_first:  # makes its choices and its memory now, or finds no room
            comm.all_reduce(CPU.xp.zeros(hi - lo, dtype), algorithm)
        super().__init__(parameters, dtype, CPU, head)
        self._comm, self._algorithm = comm, algorithm

    def start(self, lo: int, hi: int) -> Sum:
        return self._comm.start(self.flat_grad[lo:hi], self._algorithm)


class NodeStore(Single):
    """One copy of the parameters for all ranks of a node; nothing is sent within it.

    rank 0   flat_grad  [ a0 | b0 ]──┐    total            flat
    rank 1   flat_grad  [ a1 | b1 ]──┴──► [ a | b ] ─────► [ A | B ]
                                           0   1            0   1      added up, and moved, by rank
    """

    def __init__(
        self, parameters: Sequence[Parameter], dtype: Any, head: int, comm: Comm, bounds: Bounds
    ) -> None:
        n = length(parameters, head)
        self._window = comm.shared(n, dtype)
        try:
            self._common = comm.common(n, dtype)
        except NoRoomError:
            self._window.free()
            raise
        self._own = sorted(self._piece(lo, hi) for lo, hi in bounds)
        self._comm, self._counts = comm, 0 in comm.node()
        memory = self._common.array, self._window.mine
        super().__init__(parameters, dtype, CPU, head, memory)
        self._mine = self.flat_grad, self.slots
        self._total = self._window.total, self.views(self._window.total)
        self._common.meet()

    def _piece(self, lo: int, hi: int) -> tuple[int, int]:
        own = self._window.own(lo, hi)
        return own.start, own.stop

    def owned(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for a, b in self._own:
            lo, hi = max(a, start), min(b, end)
            if lo < hi:
                yield lo, hi

    def gradient_bytes(self) -> int:
        """Its own, and the sums of the node."""
        first = self._comm.node()[0] == self._comm.rank
        return super().gradient_bytes() * (2 if first else 1)

    def begin(self) -> None:
        self.flat_grad, self.slots = self._mine

    def start(self, lo: int, hi: int) -> Sum:
        return self._window.start(lo, hi)

    def summed(self) -> None:
        self.flat_grad, self.slots = self._total

    def squares(self) -> Array:
        """Only ranks of the first node add their slices: every node holds the same sums."""
        first = self.spans[0][0]
        parts = [_squares(self.flat_grad[a:b]) for a, b in self.owned(first, len(self.flat))]
        total = CPU.xp.array([sum(parts) if self._counts else 0], "float64")
        self._comm.all_reduce(total, "doubling")
        return total[0]

    def settle(self) -> None:
        self._common.meet()

    def close(self) -> None:
        FlatStore(self.parameters, self.flat.dtype, CPU)
        self._common.meet()
        self._common.free()
        self._window.free()


def _squares(g: Array) -> Array:
    """The sum of squares; in blocks that are too short for BLAS to share out among threads.

    So ranks with different numbers of threads get the same bits.
    """
    xp = backend.xp_of(g)
    if not backend.of(g).is_host:
        return xp.dot(g, g)
    return xp.array(sum(float(b @ b) for b in (g[i : i + BLOCK] for i in range(0, len(g), BLOCK))))


def place(
    parameters: Sequence[Parameter],
    on: Backend,
    head: int,
    comm: Comm,
    algorithm: str,
    bounds: Bounds,
) -> Single:
    """Moves the parameters to where they live while the ranks of `comm` sum by this algorithm."""
    dtype = parameters[0].data.dtype
    if comm.size == 1:
        return Single(parameters, dtype, on, head)
    if algorithm == "shared":
        return NodeStore(parameters, dtype, head, comm, bounds)
    return Replica(parameters, dtype, head, comm, bounds, algorithm)
