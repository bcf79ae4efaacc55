"""ShardedStore: the store of ZeRO. Each rank along dp updates its shards of the parameters.

                             values          gradients        optimizer state    bytes a parameter
                                                                                 (float32, Adam)
LocalStore              0    whole           whole            whole              16
ShardedStore            1    whole           whole            shards             8 + 8/d
ShardedGradientStore    2    whole           shards, slots    shards             4 + 12/d
ShardedParameterStore   3    shards, slots   shards, slots    shards             16/d

Each adds to the one above it. The scalars are summed last, with the squares, in one short
all-reduce.

After an update each rank has new values in its shards, and all ranks gather those of all. The
gathers start in the order of the next forward pass, few at a time, and go on during it: a parameter
waits for its bucket when it is used. They have a Comm of their own, on which each rank may start
the next one when it finds the time. So values can be read where all ranks along dp read together:
in a step, in an evaluation, in `reading`. A rank that reads alone, between steps, is refused: it
would wait for ranks that may wait for it. In `gathered` each has all.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array, Backend
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, within
from nnmpi.parallel.recorder import current_recorder
from nnmpi.parallel.stores import (
    LOSS,
    STOP,
    Buckets,
    LocalStore,
    Stretch,
    scalar_count,
    squares,
    stores_of,
)
from nnmpi.parallel.wire import Transfer, Wire, wire_of

AT_ONCE = 4  # gathers
GATHER = "ring"


class ShardedStore(LocalStore):
    """ZeRO 1. `gathers` has the same ranks as `dp`.

    Buckets are summed over the ranks of dp, but for parameters that other stages have too.
    """

    order = 0
    """A checksum of what was gathered, in which order; all ranks have the same."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        on: Backend,
        buckets: Buckets,
        dp: Comm,
        gathers: Comm,
    ) -> None:
        for p in parameters:
            p.grad = None
        for store in stores_of(parameters):
            if {*store.parameters} <= {*parameters}:  # no gradients while values move
                store.flat_grad, store.slots = store.on.xp.zeros(0, store.dtype), []
        self.dp, self.wire, self.gathers = dp, wire_of(dp, on), wire_of(gathers, on)
        # a bucket of several stages is counted in shards of its own, once in each stage
        self._counted = buckets.shards(self.wire)
        self._own_scalars, self._loss = np.zeros(scalar_count(parameters)), 0.0
        self._is_reading, self._has_sums, self._whole = False, False, list[Array]()
        super().__init__(parameters, dtype, on, buckets=buckets)

    def allocate(self) -> None:
        self.shards = self.buckets.shards()
        super().allocate()
        self._due = deque[int]()  # buckets that are to be gathered next
        self._works: dict[int, Transfer] = {}
        self._is_complete = True

    # ---- values

    def take(self, i: int, p: Parameter) -> None:
        self.values[i][...] = self.on.asarray(p.data)

    def value(self, i: int) -> Array:
        if self._whole:
            return self._whole[i]
        self.check_reading(i)
        return self.complete_value(i)

    def complete_value(self, i: int) -> Array:
        """The values of parameter i, as soon as they are complete; other buckets progress."""
        if not self._is_complete:
            self._wait_for(self.buckets.of[i])
            self._progress()
        return self.values[i]

    def readable(self, i: int) -> list[tuple[int, int]]:
        start, size = self.spans[i][0], self.parameters[i].size
        own = within(self.shards, start, start + size)
        return [(shard.start - start, shard.stop - start) for shard in own] or [(0, 0)]

    def numbers(self, i: int, lo: int, hi: int) -> Array:
        if self._whole:
            return super().numbers(i, lo, hi)
        start = self.spans[i][0]
        own = [*within(self.shards, start + lo, start + hi)]
        return self.shard_values(*own) if own else self.flat[:0]

    def parameter_bytes(self) -> int:
        return int(self.flat.nbytes)

    def gradient_bytes(self) -> int:
        return int(self.flat_grad.nbytes)

    @contextmanager
    def reading(self) -> Iterator[None]:
        before, self._is_reading = self._is_reading, True
        try:
            yield
        finally:
            self._is_reading = before

    @contextmanager
    def gathered(self) -> Iterator[None]:
        if self._whole:  # within another one
            yield
            return
        whole = self.views(self.on.xp.zeros(self.length, self.dtype))
        with self.reading():
            for i, array in enumerate(whole):
                array[...] = self.complete_value(i)
        self.wait()
        self._whole, self.rotates = whole, False
        try:
            yield
            for i, p in enumerate(self.parameters):
                self.take(i, p)
        finally:
            self._whole, self.rotates = [], type(self).rotates
        self.gather()

    def check_reading(self, i: int) -> None:
        """Raises ValueError where a rank reads parameter i alone."""
        if not self._is_reading:
            raise ValueError(
                f"{self.parameters[i].place.path}: between steps its values are in parts on "
                f"{self.dp.size} ranks along dp; enter `with trainer.gathered_parameters():` on "
                "every rank, and read or write them in it"
            )

    def gather(self) -> None:
        """All ranks have updated their shards: the values of the others come."""
        for b, (_, _, comm) in enumerate(self.buckets):
            if comm is self.wire:
                self._due.append(b)
            else:  # at once, since the next sum on its Comm may start before a use
                self._works[b] = self._gather(b, comm)
        self._is_complete = False
        self._progress()

    def _progress(self) -> None:
        """The next gathers start when others are complete."""
        while self._works:
            b, work = next(iter(self._works.items()))
            if not work.poll():
                break
            del self._works[b]
        while self._due and len(self._works) < AT_ONCE:
            self._start_next()
        self._is_complete = not self._works

    def _wait_for(self, b: int) -> None:
        while b in self._due:
            self._start_next()
        work = self._works.pop(b, None)
        if work is not None:
            wait_for_gather(work)

    def _start_next(self) -> None:
        b = self._due.popleft()
        self._works[b] = self._gather(b, self.gathers)

    def _gather(self, b: int, comm: Wire) -> Transfer:
        start, stop, _ = self.buckets[b]
        return comm.start_all_gather(self.flat[start:stop], GATHER)

    # ---- gradients

    def slot(self, i: int) -> Array:
        if self._has_sums:
            self._refuse_gradient(i)
        return self.own_slot(i)

    def start(self, b: int) -> Transfer | None:
        """Starts the sum of a bucket; each rank of dp gets its shard only, if there are halves."""
        (start, stop, comm), algorithm = self.buckets[b], self.buckets.algorithm
        if comm is self.wire and algorithm in REDUCE_SCATTERS:
            return comm.start_reduce_scatter(self.flat_grad[start:stop], algorithm)
        return super().start(b)

    def own_slot(self, i: int) -> Array:
        """The memory of this rank's gradient of parameter i."""
        return self.slots[i]

    @property
    def scalars(self) -> Array:
        """On the host; the loss is there when it is summed."""
        return self._own_scalars

    def note_loss(self, loss: Any, stop: bool) -> None:
        self._loss, self.scalars[STOP] = loss, stop

    def begin(self) -> None:
        if self._whole:
            raise ValueError("leave trainer.gathered_parameters() before the next step")
        super().begin()
        self._has_sums, self._is_reading = False, True

    def poll(self) -> None:
        """Messages of this store progress."""
        self._progress()

    def wait(self) -> None:
        """No message of this store is under way."""
        for b in range(len(self.buckets)):
            self._wait_for(b)
        self._is_complete = True

    def show_sums(self) -> None:
        """From here on the gradients are sums, in shards; no values are sent when they change."""
        self.wait()
        self._has_sums = True

    def totals(self, counted: Sequence[Stretch]) -> Array:
        xp, order = self.on.xp, float(self.order)
        shards = (shard for lo, hi in counted for shard in within(self._counted, lo, hi))
        own = [squares(self.shard_gradient(one)) for one in self.pieces(shards)]
        both = backend.to_host(xp.stack([xp.asarray(self._loss, np.float64), *own]))
        self.scalars[LOSS], *totals = both.tolist()
        row = np.array([*self.scalars, sum(totals), order, order**2])
        self.dp.all_reduce(row, "doubling")
        *_, orders, squared = row.tolist()
        if orders**2 != self.dp.size * squared:  # as it is if, and only if, all orders are equal
            self._refuse_orders()
        return row[:-2]

    def whole_gradient(self, i: int) -> Array:
        start, stop, comm = self.buckets[self.buckets.of[i]]
        if comm is self.wire:
            comm.all_gather(self.flat_grad[start:stop], GATHER)
        return self.slots[i]

    def settle(self) -> None:
        self.gather()
        self._is_reading = False

    def close(self) -> None:
        self.wait()
        self.begin()
        FlatStore(self.parameters, self.dtype, self.on)
        self.wait()

    def _refuse_orders(self) -> NoReturn:
        raise ValueError(
            f"zero 3 gathers parameters when they are used, and {self.dp.size} ranks have used "
            "them in different orders, so that some had wrong values: run layers and read "
            "parameters in one order on all ranks, or use --zero 2"
        )

    def _refuse_gradient(self, i: int) -> NoReturn:
        raise ValueError(
            f"{self.parameters[i].place.path}: after a step the gradient is in parts on "
            f"{self.dp.size} ranks; all of them get it by store.whole_gradient({i})"
        )


def wait_for_gather(work: Transfer) -> None:
    """Waits for a gather, and notes how long."""
    recorder = current_recorder.get()
    began = recorder.now()
    work.wait()
    recorder.add("gather", began)
