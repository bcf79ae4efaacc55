"""Stores of training: where the parameters and gradients of a rank are, and the buckets of sums.

                     flat                    flat_grad
LocalStore           a copy on each rank     this rank's; the sums over dp replace it
NodeStore            one memory for a node   this rank's segment; the sums are in one memory for a
                                             node, and each rank updates the part that it summed
SliceStore           a copy on each rank     a stack of buffers, one for each partial sum of slices
stores of zero/      a copy on each rank,    this rank's, or the shards that it updates
                     or its shards

In front of the gradients are scalars that are summed together with them, and so cost no message:

    flat_grad   [ loss | stop | used 0 | used 1 | ... | gradients ... ]

`used i` counts the ranks on which parameter i got a gradient.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.backend import CPU, Array, Backend
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.comm import Comm, NoRoomError
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, Shard, shards_of
from nnmpi.parallel.wire import Transfer, Wire

LOSS, STOP, USED = 0, 1, 2
"""Where the scalars are."""


def piece_of(on: Backend) -> int:
    """How many gradients of 16 bits become float32 at a time, for the optimizer."""
    return on.chunk_bytes // 64


BLOCK = 8192  # numbers; OpenBLAS takes several threads for a dot product of more than 10,000

Stretch = tuple[int, int]
"""(start, stop) in a flat buffer."""


def scalar_count(parameters: Sequence[object]) -> int:
    """How many scalars there are: the loss, the request to stop, and one number a parameter."""
    return USED + len(parameters)


class CommBucket(NamedTuple):
    """A stretch of gradients that is summed in one operation, over the ranks of `comm`."""

    start: int
    stop: int
    comm: Wire


class Buckets:
    """All buckets in the order of memory, and so of a forward pass; one may be empty.

    flat      [ bucket 0     | bucket 1        | bucket 2 ]
    rank 0    [ ##..         | ###...          | ##..     ]      shard r of each bucket is rank r's
    rank 1    [ ..##         | ...###          | ..##     ]
    packed    [ ## | ### | ## ]                                  on each rank

    of         the bucket of each parameter
    members    the parameters of each bucket
    users      the stages of this rank that use each parameter
    stages     the stages of this rank that use each bucket
    algorithm  the all-reduce that sums them
    """

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        buckets: Sequence[CommBucket],
        users: Sequence[frozenset[int]],
        algorithm: str,
    ) -> None:
        self.algorithm = algorithm
        self.users, self._all = users, sorted(buckets, key=lambda bucket: bucket[:2])
        numbers = range(len(buckets))
        last = len(buckets) - 1  # an empty parameter may begin where it ends
        self.of = [
            next((b for b in numbers if start < self._all[b].stop), last) for start, _ in spans
        ]
        self.members = [[i for i, own in enumerate(self.of) if own == b] for b in numbers]
        self.stages = [frozenset[int]().union(*(users[i] for i in own)) for own in self.members]

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, b: int) -> CommBucket:
        return self._all[b]

    def __iter__(self) -> Iterator[CommBucket]:
        return iter(self._all)

    def shards(self, over: Wire | None = None) -> list[Shard]:
        """This rank's shard of each bucket, among the ranks of its Comm, or of another one."""
        own = ((start, (over or comm).chunk(stop - start)) for start, stop, comm in self._all)
        return shards_of((start + chunk.start, start + chunk.stop) for start, chunk in own)

    def set_up(self, dtype: Any, on: Backend = CPU) -> None:
        """Comm chooses its ways and takes its memory now, or finds no room.

        The longest first, in an order that all ranks of all comms share.
        """
        for b in sorted(self._all, key=lambda b: (b.start - b.stop, b.comm.name)):
            if b.comm.size > 1 and self.algorithm not in REDUCE_SCATTERS:  # which take no memory
                b.comm.all_reduce(on.xp.zeros(b.stop - b.start, dtype), self.algorithm)


NO_BUCKETS = Buckets((), (), (), "")
"""Gradients are not summed in buckets."""


class LocalStore(FlatStore):
    """A whole copy on this rank; `scalars` of its gradient buffer are summed with the gradients."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        on: Backend,
        scalars: int = 0,
        buckets: Buckets = NO_BUCKETS,
    ) -> None:
        self._scalars, self.buckets = scalars, buckets
        super().__init__(parameters, dtype, on, scalars)

    @property
    def scalars(self) -> Array:
        """Loss, stop flag and uses: of this rank, or, after a sum, of all ranks of dp."""
        return self.flat_grad[: self._scalars]

    def begin(self) -> None:
        """Starts a step: no parameter has a gradient."""
        for p in self.parameters:
            p.grad = None

    def note_loss(self, loss: Any, stop: bool) -> None:
        """Writes into the scalars the loss of this rank, and whether it wants to stop."""
        self.scalars[LOSS], self.scalars[STOP] = loss, stop

    def note_used(self) -> None:
        """Writes into the scalars which parameters have a gradient."""
        scalars = self.scalars
        flags = np.array([p.has_grad for p in self.parameters], scalars.dtype)
        scalars[USED : USED + len(flags)] = backend.of(scalars).asarray(flags)

    def start(self, b: int) -> Transfer | None:
        """Starts the sum of a bucket, in its place; None on one rank, where it is complete."""
        start, stop, comm = self.buckets[b]
        if comm.size == 1:
            return None
        return comm.start(self.flat_grad[start:stop], self.buckets.algorithm)

    def show_sums(self) -> None:
        """All sums are complete: from here on `flat_grad` holds them."""

    def totals(self, counted: Sequence[Stretch]) -> Array:
        """The scalars summed over dp, and behind them the sum of the squares of the gradients in
        the stretches that this rank counts."""
        xp = backend.xp_of(self.flat_grad)
        squares = xp.asarray(self.squares(counted)).reshape(1)
        return xp.concatenate((self.scalars, squares))

    def squares(self, counted: Sequence[Stretch]) -> Array:
        """The sum of the squares of the summed gradients there; the same bits on every rank."""
        return sum(squares(g) for lo, hi in counted for *_, g in self.owned(lo, hi))

    def summed(self, shard: Shard) -> Array:
        """The memory of the summed gradients of a shard, in the type in which they are summed."""
        return self.shard_gradient(shard)

    def pieces(self, shards: Iterable[Shard]) -> Iterable[Shard]:
        """Shards as `shard_gradient` takes them: whole."""
        return shards

    def scale_gradients(self, factor: float) -> None:
        """Multiplies all summed gradients that this rank updates by."""
        for *_, gradient in self.owned(self.spans[0][0], self.spans[-1][1]):
            gradient *= factor

    def whole_gradient(self, i: int) -> Array:
        """The summed gradient of parameter i after a step; every rank of dp calls it."""
        return self.slots[i]

    def settle(self) -> None:
        """Returns when every rank has updated the parameters that it owns."""

    def close(self) -> None:
        """Frees shared memory; parameters move to memory of this rank. Every rank calls it."""


def fill_unused(parameters: Iterable[Parameter]) -> None:
    """Writes zeros where there is no gradient."""
    for p in parameters:
        if not p.has_grad:
            p.slot[...] = 0


def squares(g: Array) -> Array:
    """The sum of squares, in blocks that are too short for BLAS to share out among threads.

    So ranks with different numbers of threads get the same bits.
    """
    xp = backend.xp_of(g)
    if not backend.of(g).is_host:
        return xp.dot(g, g)
    return xp.array(sum(float(b @ b) for b in (g[i : i + BLOCK] for i in range(0, len(g), BLOCK))))


def stores_of(parameters: Iterable[Parameter]) -> list[FlatStore]:
    """The flat stores that hold these parameters, each once."""
    stores = dict.fromkeys(p.store for p in parameters)
    return [store for store in stores if isinstance(store, FlatStore)]


@contextmanager
def reading(parameters: Iterable[Parameter]) -> Iterator[None]:
    """Within it these parameters are read between steps, by all ranks along dp in one order."""
    with ExitStack() as stack:
        for store in stores_of(parameters):
            stack.enter_context(store.reading())
        yield


def values_of(p: Parameter) -> Array:
    """The values of p between steps; every rank along dp asks for the same ones, in one order."""
    with reading([p]):
        return p.data


class NodeStore(LocalStore):
    """All buckets are summed over the ranks of one Comm, through a window that its nodes share.

    rank 0   flat_grad  [ a0 | b0 ]──┐    total            flat
    rank 1   flat_grad  [ a1 | b1 ]──┴──► [ a | b ] ─────► [ A | B ]
                                           0   1            0   1      summed and updated by rank
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        scalars: int,
        buckets: Buckets,
        comm: Comm,
    ) -> None:
        self._comm = comm
        self._first_node, self._is_first_of_node = 0 in comm.node(), comm.node()[0] == comm.rank
        self._is_apart = False
        super().__init__(parameters, dtype, CPU, scalars, buckets)
        self._parameters.barrier()

    def allocate(self) -> None:
        self._window = self._comm.shared(self.length, self.dtype)
        try:
            self._parameters = self._comm.node_memory(self.length, self.dtype)
        except NoRoomError:
            self._window.free()
            raise
        own = (self._window.own(start, stop) for start, stop, _ in self.buckets)
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
        if self._is_apart:
            raise ValueError("leave trainer.gathered_parameters() before the next step")
        self.flat_grad, self.slots = self._mine
        super().begin()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it each rank has a copy of its own; that of a node's first rank is kept."""
        if self._is_apart:  # within another one
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
        start, stop, _ = self.buckets[b]
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
        # of this store and its optimizer there are arrays that nobody uses any more
        self._parameters.free(check=False)
        self._window.free(check=False)
