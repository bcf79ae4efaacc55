"""LocalStore: a whole copy of the parameters on this rank, and the base of the stores of training.

In front of the gradients are scalars that are summed together with them
(`arrangement/flat_buffer.py`); or there are none, and scalars are summed apart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels.steps import BLOCK_OF_SQUARES, Mixed, squares_loop
from nnmpi.arrays.meta import is_meta
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.place import Range
from nnmpi.nn.store import FlatStore, Shard, ShardArrays, UpdateArrays, shards_of, within
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.arrangement.flat_buffer import LOSS, REQUEST, USED, Stretch, scalar_count
from nnmpi.parallel.stores.buckets import NO_BUCKETS, Buckets
from nnmpi.parallel.stores.masters import MASTER, Masters, NoMasters
from nnmpi.parallel.wire import Transfer


class StoreSpec(NamedTuple):
    """The arguments that any store is made from.

    dp        the ranks that have the same parameters
    scalars   how many scalars have room in front of the gradients; 0: they are summed apart
    apart     whether they are summed apart though they have room: no sum takes them along
    scaler    the loss scale, where parameters have masters
    """

    parameters: Sequence[Parameter]
    dtype: Any
    on: Backend
    dp: Comm
    scalars: int = 0
    buckets: Buckets = NO_BUCKETS
    scaler: Scaler | None = None
    apart: bool = False


InTurn: TypeAlias = Callable[..., Iterator[Sequence[Array]]]
"""Yields arrays of one length, or the same pieces of each of them, one behind the other; the work
on them is over when the next ones are asked for."""


def at_once(*arrays: Array) -> Iterator[Sequence[Array]]:
    """The `InTurn` of arrays that are all in memory."""
    yield arrays


class LocalStore(FlatStore):
    """A whole copy on this rank.

    scaler    the loss scale, where parameters have masters
    masters   what the optimizer updates instead of values, if anything
    in_turn   how what an update reads and changes comes to memory; some of it may be on disk
              (`swapping/model_pages.py`)
    """

    in_turn: InTurn = staticmethod(at_once)

    def __init__(self, spec: StoreSpec) -> None:
        self.dp, self.buckets, self.scaler = spec.dp, spec.buckets, spec.scaler
        # apart they are on the host, but for the loss
        self._in_front = 0 if spec.apart else spec.scalars
        self._apart = np.zeros(scalar_count(spec.parameters))
        self.loss, self.request = 0.0, 0.0  # of this rank, the loss where it was computed
        super().__init__(spec.parameters, spec.dtype, spec.on, spec.scalars)

    def allocate(self) -> None:
        self.buckets.set_up(self.dtype, self.on)
        super().allocate()
        self.allocate_masters()

    def allocate_masters(self) -> None:
        """Takes the memory of masters, when it is known what this rank updates."""
        n = self.shards[-1].packed.stop if self.shards else 0
        scaler, zeros = self.scaler, self.on.xp.zeros
        self.masters = NoMasters() if scaler is None else Masters(zeros(n, MASTER), scaler)
        self.updated_dtype = types_of(self.dtype).masters
        self._readable = shards_of([(0, self.length)]) if self.scaler is None else self.shards

    # ---- values

    def take(self, i: int, p: Parameter) -> None:
        super().take(i, p)
        if self.masters.array is not None:
            self.keep(i, p.data)

    def keep(self, i: int, values: Array) -> None:
        """Copies values of parameter i, of any type, into what this rank updates of it."""
        row, start = memory_order(self.parameters[i], self.on.asarray(values)), self.spans[i][0]
        for shard in within(self.shards, start, start + row.size):
            own = row[shard.start - start : shard.stop - start]
            updated = self.masters.updated(shard, self.shard_values(shard))
            updated[...] = self.masters.of(shard, own)

    def readable(self, i: int) -> list[Range]:
        start, place = self.spans[i][0], self.parameters[i].place
        here = within(self._readable, start, start + place.size)
        ranges = [place.range(shard.start - start, shard.stop - start) for shard in here]
        return ranges or [place.range(0, 0)]

    def numbers(self, i: int, lo: int, hi: int) -> Array:
        return self.masters.of(self.own_shard(i, lo, hi), super().numbers(i, lo, hi))

    def own_shard(self, i: int, lo: int, hi: int) -> Shard:
        """Numbers lo to hi - 1 of parameter i, in the order of its memory, if they are readable."""
        start = self.spans[i][0]
        return next(within(self.shards, start + lo, start + hi), Shard(0, 0, 0))

    # ---- scalars

    @property
    def scalars(self) -> Array:
        """Loss, request and uses: of this rank, or, after a sum, of all ranks of dp."""
        return self.flat_grad[: self._in_front] if self._in_front else self._apart

    def note_loss(self, loss: Any, request: float) -> None:
        """Notes the loss of this rank and what it requests, each in one write to a device."""
        self.loss, self.request = loss, request
        where, what = (LOSS, loss) if self._in_front else (REQUEST, request)
        self.scalars[where] = what

    def note_used(self) -> None:
        """Writes into the scalars what this rank requests, and which parameters have a gradient."""
        scalars = self.scalars
        flags = [p.has_grad for p in self.parameters]
        row = np.array([self.request, *flags], scalars.dtype)
        scalars[REQUEST : USED + len(flags)] = backend.of(scalars).asarray(row)

    def totals(self, counted: Sequence[Stretch]) -> Array:
        """The scalars summed over dp, and behind them the sum of the squares of the gradients in
        the stretches that this rank counts."""
        own = self.squares(counted)
        if self._in_front:
            xp = backend.xp_of(self.flat_grad)
            return xp.concatenate((self.scalars, xp.asarray(own).reshape(1)))
        row = np.array(self.on_host([own]))
        self.dp.all_reduce(row[:-1], "doubling")
        return row

    def on_host(self, squares: Sequence[Array]) -> list[float]:
        """The scalars that are apart, and the sum of these squares; one copy from the device."""
        xp, numbers = self.on.xp, (self.loss, *squares)
        row = xp.concatenate([xp.asarray(x, np.float64).reshape(1) for x in numbers])
        self.scalars[LOSS], *found = backend.numbers(row)
        return [*self.scalars.tolist(), sum(found)]

    def squares(self, counted: Sequence[Stretch]) -> Array:
        """The sum of the squares of the summed gradients there; the same bits on every rank."""
        shards = (shard for lo, hi in counted for shard in self.own_shards(lo, hi))
        return self.squares_of(shards)

    def squares_of(self, shards: Iterable[Shard]) -> Array:
        """The sum of squares of the gradients in these shards, as an update reads them."""
        gradients = (self.shard_gradient(shard) for shard in shards)
        found = [squares(g, self.in_turn, self.masters.factor) for g in gradients if len(g)]
        return sum(found[1:], start=found[0]) if found else np.zeros(())

    # ---- a step

    def begin(self) -> None:
        """Starts a step: no parameter has a gradient."""
        for p in self.parameters:
            p.grad = None
        self.masters.begin()

    def start(self, b: int) -> Transfer | None:
        """Starts the sum of a bucket, in its place; None on one rank, where it is complete."""
        start, stop, comm = self.buckets.all[b]
        if comm.size == 1:
            return None
        return comm.start(self.flat_grad[start:stop], self.buckets.algorithm)

    def poll(self) -> None:
        """Messages that this store has started progress."""

    def wait(self) -> None:
        """No message that this store has started is under way."""

    def show_sums(self) -> None:
        """All sums are complete: from here on `flat_grad` holds them."""

    def owned(self, start: int, end: int) -> Iterator[ShardArrays]:
        for shard, values, gradient in super().owned(start, end):
            yield shard, self.masters.updated(shard, values), gradient

    def mixed(self, shard: Shard) -> Mixed:
        return self.masters.mixed(self.shard_values(shard))

    def updates(
        self, start: int, end: int, sums: Mapping[str, Array], at: int
    ) -> Iterator[UpdateArrays]:
        for values, grads, own, mixed in super().updates(start, end, sums, at):
            beside = [] if mixed.values is None else [mixed.values]
            for v, g, *s in self.in_turn(values, grads, *own.values(), *beside):
                found = mixed._replace(values=s.pop() if beside else None)
                yield UpdateArrays(v, g, dict(zip(own, s, strict=True)), found)

    def scale(self, array: Array, factor: float) -> None:
        for (piece,) in self.in_turn(array):
            super().scale(piece, factor)

    def scale_gradients(self, factor: float) -> None:
        """Multiplies all summed gradients that this rank updates by."""
        self.masters.scale(self, factor)

    def whole_gradient(self, i: int) -> Array:
        """The summed gradient of parameter i after a step; every rank of dp calls it."""
        return self.unscaled(self.grad_memories[i])

    def unscaled(self, summed: Array) -> Array:
        """The gradient, as the optimizer reads it, for sums of any shape."""
        return summed.astype(self.updated_dtype, copy=False) * self.masters.factor

    def settle(self) -> None:
        """Returns when every rank has updated the parameters that it owns."""

    def close(self) -> None:
        """Frees shared memory; parameters move to memory of this rank. Every rank calls it."""


def fill_unused(parameters: Iterable[Parameter]) -> None:
    """Writes zeros where there is no gradient."""
    for p in parameters:
        if not p.has_grad:
            p.grad_memory[...] = 0


def squares(g: Array, in_turn: InTurn = at_once, factor: float = 1.0) -> Array:
    """The float64 sum over blocks of squares of factor * g: threads of BLAS change nothing."""
    dtype = types_of(g.dtype).sums
    if is_meta(g):
        return np.array(1.0)
    if not backend.of(g).is_host:
        sums = backend.xp_of(g).empty(-(-len(g) // BLOCK_OF_SQUARES), dtype)
        squares_loop(g, factor, sums)
        return sums.sum(dtype=np.float64)
    found: list[float] = []
    for (piece,) in in_turn(g):
        sums = np.empty(-(-len(piece) // BLOCK_OF_SQUARES), dtype)
        squares_loop(piece, factor, sums)
        found += sums.tolist()
    return np.array(sum(found))
