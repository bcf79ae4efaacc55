"""ShardedStore: the store of ZeRO. Each rank along dp updates parts of the parameters.

                     values            gradients          optimizer state      bytes a parameter
                                                                               (float32, Adam)
ReplicaStore   0     whole             whole              whole                16
ShardedStore   1     whole             whole              parts                8 + 8/d
               2     whole             parts, and slots   parts                4 + 12/d
               3     parts, and slots  parts, and slots   parts                16/d

The head is summed last, with the squares, in one short all-reduce.

Values are gathered when they are read, from parts of all ranks along dp. So they can be read where
these ranks read together: in a step, in an evaluation, in `reading`. A rank that reads alone,
between steps, is refused: it would wait for ranks that may wait for it. In `gathered` each has all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from nnmpi.backend import CPU, Array
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.stores.head import head_length
from nnmpi.parallel.stores.local import Bucket, LocalStore, Stretch, Sum, squares
from nnmpi.parallel.zero.gradient_slots import GradientSlots
from nnmpi.parallel.zero.shards import Part, Shards
from nnmpi.parallel.zero.weight_slots import WeightSlots
from nnmpi.parallel.zero.whole import WholeGradients, WholeValues


class Values(Protocol):
    """What a rank has of the values (see `WholeValues` and `WeightSlots`)."""

    rotates: bool
    nbytes: int
    slot_nbytes: int
    order: int  # a checksum of what was gathered, in which order; all ranks have the same

    def __init__(self, store: FlatStore, shards: Shards, dp: Comm, gathers: Comm) -> None: ...
    def take(self, i: int, p: Parameter) -> None: ...
    def array(self, i: int) -> Array: ...
    def refresh(self, i: int, made: int) -> None: ...
    def written(self, i: int) -> None: ...
    def part(self, part: Part) -> Array: ...
    def updated(self) -> None: ...
    def poll(self) -> None: ...
    def wait(self) -> None: ...


class Gradients(Protocol):
    """What a rank has of the gradients (see `WholeGradients` and `GradientSlots`)."""

    nbytes: int

    @property
    def slot_nbytes(self) -> int: ...
    def __init__(self, store: FlatStore, shards: Shards, dp: Comm, algorithm: str) -> None: ...
    def begin(self) -> None: ...
    def view(self, i: int) -> Array: ...
    def start(self, b: int) -> Sum: ...
    def poll(self) -> None: ...
    def wait(self) -> None: ...
    def part(self, part: Part) -> Array: ...
    def whole(self, i: int) -> Array: ...


class Stage(NamedTuple):
    """What a rank has of values and gradients in a stage of ZeRO."""

    values: type[Values]
    gradients: type[Gradients]


STAGES: dict[int, Stage] = {
    1: Stage(WholeValues, WholeGradients),
    2: Stage(WholeValues, GradientSlots),
    3: Stage(WeightSlots, GradientSlots),
}
"""The stages of ZeRO (Rajbhandari et al., 2020) by their numbers."""


class ShardedStore(LocalStore):
    """`buckets` are summed over the ranks of dp, but for parameters that other stages have too."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        buckets: Sequence[Bucket],
        users: Sequence[frozenset[int]],
        dp: Comm,
        gathers: Comm,
        algorithm: str,
        stage: Stage,
    ) -> None:
        self.lay_out(parameters, dtype, CPU, head=0)
        for store in {p.store for p in parameters}:
            if isinstance(store, FlatStore) and {*store.parameters} <= {*parameters}:
                store.drop_gradients()  # else they would take memory until all values have moved
        self.shards = Shards(self.spans, buckets, users)
        # a bucket of several stages is counted in parts of its own, once in each stage
        over_dp = [bucket._replace(comm=dp) for bucket in buckets]
        self._counted = Shards(self.spans, over_dp, users)
        self._number = {bucket: b for b, bucket in enumerate(self.shards.buckets)}
        self._head = np.zeros(head_length(parameters))
        self._dp, self.gathers, self._has_sums = dp, gathers, False
        self._values = stage.values(self, self.shards, dp, gathers)
        self._gradients = stage.gradients(self, self.shards, dp, algorithm)
        self.rotates = self._values.rotates
        self._is_reading, self._whole = False, list[Array]()
        self.move_in()

    def take(self, i: int, p: Parameter) -> None:
        self._values.take(i, p)
        p.grad = None

    def value(self, i: int) -> Array:
        if self._whole:
            return self._whole[i]
        self._check_reading(i)
        return self._values.array(i)

    def refresh(self, i: int, made: int) -> None:
        self._check_reading(i)
        self._values.refresh(i, made)

    def written(self, i: int) -> None:
        if not self._whole:
            self._values.written(i)

    @contextmanager
    def reading(self) -> Iterator[None]:
        before, self._is_reading = self._is_reading, True
        try:
            yield
        finally:
            self._is_reading = before

    @contextmanager
    def gathered(self) -> Iterator[None]:
        whole = self.views(np.zeros(self.shards.length, self.dtype))
        with self.reading():
            for i, array in enumerate(whole):
                array[...] = self._values.array(i)
        self.wait()
        self._whole, self.rotates = whole, False
        try:
            yield
            for i, p in enumerate(self.parameters):
                self._values.take(i, p)
        finally:
            self._whole, self.rotates = [], self._values.rotates
        self._values.updated()

    def slot(self, i: int) -> Array:
        if self._has_sums:
            self._refuse(i)
        return self._gradients.view(i)

    @property
    def head_values(self) -> Array:
        return self._head

    def begin(self) -> None:
        if self._whole:
            raise ValueError("leave trainer.gathered_parameters() before the next step")
        super().begin()
        self._has_sums, self._is_reading = False, True
        self._gradients.begin()

    def start(self, bucket: Bucket) -> Sum:
        return self._gradients.start(self._number[bucket])

    def poll(self) -> None:
        """Messages of this store progress."""
        self._values.poll()
        self._gradients.poll()

    def wait(self) -> None:
        """No message of this store is under way."""
        self._gradients.wait()
        self._values.wait()

    def summed(self) -> None:
        """From here on the gradients are sums, in parts; no values are sent when they change."""
        self.wait()
        self._has_sums = True

    def owned(self, start: int, end: int) -> Iterator[tuple[Array, Array]]:
        for part in self.shards.within(start, end):
            yield self._values.part(part), self._gradients.part(part)

    def own_stretches(self, start: int, end: int) -> Iterator[Stretch]:
        for part in self.shards.within(start, end):
            yield part.start, part.stop

    def sums(self, stretches: Sequence[Stretch]) -> Array:
        parts = (part for lo, hi in stretches for part in self._counted.within(lo, hi))
        total = sum(float(squares(self._gradients.part(p))) for p in parts)
        order = float(self._values.order)
        row = np.array([*self._head, total, order, order**2])
        self._dp.all_reduce(row, "doubling")
        *_, orders, squared = row.tolist()
        if orders**2 != self._dp.size * squared:
            self._refuse_orders()
        return row[:-2]

    def whole_gradient(self, i: int) -> Array:
        return self._gradients.whole(i)

    def settle(self) -> None:
        self._values.updated()
        self._is_reading = False

    def parameter_bytes(self) -> int:
        return self._values.nbytes

    def gradient_bytes(self) -> int:
        return self._gradients.nbytes

    def slot_bytes(self) -> int:
        return self._values.slot_nbytes + self._gradients.slot_nbytes

    def close(self) -> None:
        self.wait()
        self.begin()
        FlatStore(self.parameters, self.dtype, CPU)
        self.wait()

    def _refuse_orders(self) -> NoReturn:
        raise ValueError(
            f"zero 3 gathers parameters when they are used, and {self._dp.size} ranks have used "
            "them in different orders, so that some had wrong values: run layers and read "
            "parameters in one order on all ranks, or use --zero 2"
        )

    def _check_reading(self, i: int) -> None:
        if not self._is_reading:
            raise ValueError(
                f"{self.parameters[i].place.path}: between steps its values are in parts on "
                f"{self._dp.size} ranks along dp; enter `with trainer.gathered_parameters():` on "
                "every rank, and read or write them in it"
            )

    def _refuse(self, i: int) -> NoReturn:
        raise ValueError(
            f"{self.parameters[i].place.path}: after a step the gradient is in parts on "
            f"{self._dp.size} ranks; all of them get it by store.whole_gradient({i})"
        )
