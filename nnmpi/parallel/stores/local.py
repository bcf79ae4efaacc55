"""LocalStore: the memory of a rank that has all values and gradients of its parameters; the base
class of other stores. Scalars that are summed with the gradients are in front of them
(`arrangement/flat_buffer.py`), or summed separately."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels.precision import merge_loop
from nnmpi.arrays.kernels.steps import BLOCK_OF_SQUARES, MixedStep, scale_loop, squares_loop
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter, memory_order
from nnmpi.nn.store import FlatStore, Shard, shards_of, within
from nnmpi.optim import Optimizer
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.flat_buffer import LOSS, REQUEST, scalar_count
from nnmpi.parallel.recorder import Do
from nnmpi.parallel.stores.buckets import NO_BUCKETS, Buckets
from nnmpi.parallel.wire import Transfer
from nnmpi.schedules.op import Kind

if TYPE_CHECKING:
    from nnmpi.parallel.stores.unit_values import UnitValues


class StoreSpec(NamedTuple):
    """The arguments with which any kind of store is made.

    parameters              the trained ones of this rank, in the order of memory
    on                      the backend (CPU or GPU) whose memory is used
    dp                      the Comm of the ranks that have the same parameters
    scalars_in_buffer       how many scalars, such as the loss, precede the gradients in the buffer
    buckets                 the slices of the memory that are summed or gathered at a time
    scaler                  the loss scale, in mixed precision; None otherwise
    sum_scalars_separately  True if the loss and other scalars are summed apart from the gradients
    """

    arrangement: Arrangement
    rank: int
    parameters: Sequence[Parameter]
    dtype: Any
    on: Backend
    dp: Comm
    scalars_in_buffer: int = 0
    buckets: Buckets = NO_BUCKETS
    scaler: Scaler | None = None
    sum_scalars_separately: bool = False


_HAS_GRAD = attrgetter("has_grad")


class LocalStore(FlatStore):
    """Keeps the whole values and gradients of a rank's parameters in two flat arrays, and starts
    the sums of gradients; the base class of other stores.

    masters      float32 copies of this rank's shards of 16-bit parameters, one after the other;
                 None if the optimizer updates the parameters themselves
    factor       the number that gradients are multiplied by when the update reads them: 1 / loss
                 scale, times clipping; 1 without masters; an array if the device computes it
    ops, units   as in GradientSync, for operations that only this kind of store has
    """

    masters: Array | None = None
    factor: float | Array = 1.0
    ops: Mapping[Kind, Do] = {}
    units: "UnitValues | None" = None

    def __init__(self, spec: StoreSpec) -> None:
        self.arrangement, self.rank = spec.arrangement, spec.rank
        self.dp, self.buckets, self.scaler = spec.dp, spec.buckets, spec.scaler
        # scalars that are summed separately are on the host, except for the loss
        self._in_front = 0 if spec.sum_scalars_separately else spec.scalars_in_buffer
        self._apart = np.zeros(scalar_count(spec.parameters))
        self.loss, self.request = 0.0, 0.0  # of this rank; the loss may be on the device
        super().__init__(spec.parameters, spec.dtype, spec.on, spec.scalars_in_buffer)

    def allocate(self) -> None:
        self.buckets.set_up(self.dtype, self.on)
        super().allocate()
        self.allocate_masters()

    def allocate_masters(self) -> None:
        """Allocates `masters`, the float32 copies of 16-bit parameters in this rank's shards, if
        there is a loss scale. The shards must be known by now."""
        self.updated_dtype = types_of(self.dtype).masters
        if self.scaler is not None:
            n = self.shards[-1].packed.stop if self.shards else 0
            self.masters = self.on.xp.zeros(n, self.updated_dtype)
        self._readable = shards_of([(0, self.length)]) if self.scaler is None else self.shards

    # ---- values

    def copy_from(self, i: int, p: Parameter) -> None:
        super().copy_from(i, p)
        if self.masters is not None:
            self.keep(i, p.array)

    def keep(self, i: int, values: Array) -> None:
        """Writes `values`, all of parameter i in any dtype, to the memory that this rank keeps of
        it: its shards or, in mixed precision, the float32 masters of its shards."""
        row, start = memory_order(self.parameters[i], self.on.asarray(values)), self.spans[i][0]
        for shard in within(self.shards, start, start + row.size):
            part = row[shard.start - start : shard.stop - start]
            self.updated(shard)[...] = self._merged(shard, part)

    def updated(self, shard: Shard) -> Array:
        """Returns a shard's memory that the optimizer updates: float32 masters, or values."""
        return self.shard_values(shard) if self.masters is None else self.masters[shard.packed]

    def _merged(self, shard: Shard, values: Array) -> Array:
        """Returns the float32 masters of a shard. Where a value was changed from outside, so that
        its master does not round to it, the value replaces the master."""
        if self.masters is None:
            return values
        merged = self.masters[shard.packed].copy()
        merge_loop(merged, values)
        return merged

    def readable(self, i: int) -> list[tuple[int, int]]:
        start, size = self.spans[i][0], self.parameters[i].size
        shards = within(self._readable, start, start + size)
        return [(shard.start - start, shard.stop - start) for shard in shards] or [(0, 0)]

    def elements(self, i: int, lo: int, hi: int) -> Array:
        return self._merged(self.own_shard(i, lo, hi), super().elements(i, lo, hi))

    def own_shard(self, i: int, lo: int, hi: int) -> Shard:
        """Returns the first of this rank's shards that overlaps elements lo..hi of parameter i, cut
        to these elements; an empty shard if there is none."""
        start = self.spans[i][0]
        return next(within(self.shards, start + lo, start + hi), Shard(0, 0, 0))

    # ---- scalars

    @property
    def scalars(self) -> Array:
        """The loss, the request, and for each parameter the number of ranks on which it has a
        gradient; until they are summed over dp, those of this rank."""
        return self.flat_grad[: self._in_front] if self._in_front else self._apart

    def set_loss(self, loss: Any, request: float) -> None:
        """Stores this rank's loss and request (to stop or save), to be summed."""
        self.loss, self.request = loss, request
        index, value = (LOSS, loss) if self._in_front else (REQUEST, request)
        self.scalars[index] = value

    def write_used(self) -> None:
        """Writes this rank's request to `scalars`, and 1 for each parameter with a gradient, else
        0."""
        scalars = self.scalars
        row = np.array([self.request, *map(_HAS_GRAD, self.parameters)], scalars.dtype)
        scalars[REQUEST : REQUEST + len(row)] = self.on.asarray(row) if self._in_front else row

    def norm_shards(self, start: int, end: int) -> Iterator[Shard]:
        """Yields the slices in start..end-1 whose gradients this rank counts in the norm."""
        return within(self.shards, start, end)

    def step_sums(self, counted: Sequence[Shard]) -> Array:
        """Returns the step's scalars, summed over dp, followed by the sum of squares of the summed
        gradients in the slices `counted`."""
        sum_of_squares = self.squares(counted)
        if self._in_front:
            sum_of_squares = self.on.xp.asarray(sum_of_squares).reshape(1)
            return self.on.xp.concatenate((self.scalars, sum_of_squares))
        row = np.array(self.on_host([sum_of_squares]))
        self.dp.all_reduce(row[:-1], "doubling")  # without the squares: every rank has them all
        return row

    def on_host(self, squares: Sequence[Array]) -> list[float]:
        """Returns the scalars of this rank, then the sum of `squares`, for stores that sum scalars
        separately. One copy brings the loss and `squares` from the device."""
        self.scalars[LOSS], *sums = backend.to_floats(self.on, (self.loss, *squares))
        return [*self.scalars.tolist(), sum(sums)]

    def squares(self, shards: Sequence[Shard]) -> Array:
        """Returns the sum of squares of the summed gradients in `shards`, times `factor`, with the
        same bits on all ranks."""
        terms = [squares(self.shard_gradient(shard), self.factor) for shard in shards]
        return sum(terms[1:], start=terms[0]) if terms else np.zeros(())

    # ---- a step

    def keep_state(self, optimizer: Optimizer) -> None:
        """Adds arrays that the store keeps between steps, such as errors of compressed sums, to the
        state of the optimizer, so that they are saved. This class has none."""

    def begin(self) -> None:
        """Starts a step: marks all parameters as without gradient, and resets `factor`."""
        for p in self.parameters:
            p.has_grad = False
        self.factor = 1.0 if self.scaler is None else 1.0 / self.scaler.current.scale

    def start(self, b: int) -> Transfer | None:
        """Starts to sum the gradients of bucket b over its ranks, in place; None for one rank."""
        start, stop, comm = self.buckets.all[b]
        if comm.size == 1:
            return None
        return comm.start(self.flat_grad[start:stop], self.buckets.algorithm)

    def finish(self, b: int) -> None:
        """Moves the sum of bucket b, which is complete, to where it is kept. Does nothing here,
        since the sum is written in place; stores whose buckets share memory do."""

    def poll(self) -> None:
        """Progresses this store's messages without blocking. Does nothing here."""

    def wait(self) -> None:
        """Waits for all messages that this store has started. Does nothing here."""

    def keep_residuals(self) -> None:
        """Keeps what compressed sums left out, if the update is not skipped. Does nothing here."""

    def owned(self, shard: Shard) -> tuple[Array, Array, MixedStep]:
        values, beside = self.shard_values(shard), None
        if self.masters is not None:
            beside = None if values.dtype == self.updated_dtype else values
            values = self.masters[shard.packed]
        return values, self.shard_gradient(shard), MixedStep(beside, self.factor)

    def scale_gradients(self, factor: float) -> None:
        """Multiplies by `factor` the summed gradients of the parameters that this rank updates.
        With float32 masters this is postponed until the update reads the gradients."""
        if self.masters is not None:
            self.factor *= factor
            return
        for shard in self.own_shards(self.spans[0][0], self.spans[-1][1]):
            scale_loop(self.shard_gradient(shard), factor)

    def whole_gradient(self, i: int) -> Array:
        """Returns the summed gradient of parameter i after a step; every rank along dp calls it."""
        return self.unscaled(self.grad_memories[i])

    def unscaled(self, summed: Array) -> Array:
        """Converts a summed gradient for the update: times `factor`, in the dtype of masters."""
        return summed.astype(self.updated_dtype, copy=False) * self.factor

    def wait_for_updates(self) -> None:
        """Waits until every rank has updated its shards of shared memory. Does nothing here."""

    def close(self) -> None:
        """Moves parameters to memory of this rank; every rank calls it. Does nothing here."""


def fill_unused(parameters: Iterable[Parameter]) -> None:
    """Writes zeros as the gradient of each parameter that has none in this step."""
    for p in parameters:
        if not p.has_grad:
            p.grad_memory[...] = 0


def squares(g: Array, factor: float | Array = 1.0) -> Array:
    """Returns the float64 sum of squares of factor * g. It is summed in blocks of fixed length, so
    its bits do not depend on the number of BLAS threads."""
    on = backend.of(g)
    sums = on.xp.empty(-(-len(g) // BLOCK_OF_SQUARES), types_of(g.dtype).sums)
    squares_loop(g, factor, sums)
    return np.array(sum(sums.tolist())) if on.is_host else sums.sum(dtype=np.float64)
