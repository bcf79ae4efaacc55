"""ZeroStore: the store of ZeRO, in which each rank along dp updates its shards of the parameters.

                           values            gradients        optimizer state    bytes a parameter
                                                                                 (float32, Adam)
LocalStore   --zero 0      whole             whole            whole              16
ZeroStore           1      GatheredValues    WholeGradients   shards             8 + 8/d
                    2      GatheredValues    GradientSlots    shards             4 + 12/d
                    3      WeightSlots       GradientSlots    shards             16/d

It consists of two objects, which do not refer to each other, and use the store only in their
constructors. The scalars (loss and flags) are summed last, with the squares of the gradients, in
one short all-reduce.

Values can be read only where all ranks along dp read together: in a step, in an evaluation, in
`reading`. A rank that reads alone between steps is refused: it would wait for ranks that may wait
for it. In `gathered` each rank has all values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, TypeAlias

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, Shard, stores_of, within
from nnmpi.parallel.layout import duplicate
from nnmpi.parallel.stores.gathered_values import GatheredValues
from nnmpi.parallel.stores.gradient_slots import GradientSlots, WholeGradients
from nnmpi.parallel.stores.local import LocalStore, StoreSpec
from nnmpi.parallel.stores.weight_slots import WeightSlots
from nnmpi.parallel.wire import Transfer, wire_of
from nnmpi.schedules.op import Kind

Values: TypeAlias = GatheredValues | WeightSlots
GradBuffers: TypeAlias = WholeGradients | GradientSlots


class ZeroStore(LocalStore):
    """The parameters and gradients of a rank under ZeRO, made by the classes `values` and
    `gradients`; each rank along dp updates one shard of each bucket.

    Gradients of a bucket are summed over dp; those of a parameter that several stages use, over the
    ranks of these stages too.
    """

    def __init__(self, values: type[Values], gradients: type[GradBuffers], spec: StoreSpec) -> None:
        for p in spec.parameters:
            p.grad_array = None
        for store in stores_of(spec.parameters):
            if {*store.parameters} <= {*spec.parameters}:  # no gradients while values move
                store.flat_grad, store.grad_memories = store.on.xp.zeros(0, store.dtype), []
        self._values_of, self._gradients_of = values, gradients
        self._is_reading, self._is_scattered, self._whole = False, False, list[Array]()
        super().__init__(spec)

    def allocate(self) -> None:
        self.shards = self.buckets.shards()
        # a bucket that other stages sum too is cut over more ranks than dp; the norm of this stage
        # needs it whole within dp
        self._norm_shards = self.buckets.shards(wire_of(self.dp, self.on))
        self.buckets.set_up(self.dtype, self.on)
        self.allocate_masters()
        self._readable = self.shards
        self.gathers = duplicate(self.dp)
        self._values = self._values_of(self, wire_of(self.gathers, self.on))
        self._gradients, self.units = self._gradients_of(self), self._values.units
        values = self._values
        self.ops = {
            Kind.GATHER: lambda op: values.gather(op.at),
            Kind.WAIT: lambda op: values.wait_for(op.at),
            **self._gradients.ops,
        }
        self.flat, self.flat_grad = self._values.flat, self._gradients.flat
        self.rotates = self._values.rotates
        self.is_shared = self.rotates or self._gradients.has_slots

    # ---- values

    def copy_from(self, i: int, p: Parameter) -> None:
        values = self.on.asarray(p.array)
        if not self._values.rotates:
            self._values.current(i)[...] = values
        self.keep(i, values)

    def value(self, i: int) -> Array:
        if self._whole:
            return self._whole[i]
        if not self._is_reading:
            self._refuse_reading(i)
        return self._values.value(i)

    def fixed_value(self, i: int) -> Array:
        return self._values.fixed(i)

    def written(self, i: int) -> None:
        if self.rotates:
            self.keep(i, self._values.current(i))

    def shard_values(self, shard: Shard) -> Array:
        return self.flat[shard.packed] if self._values.rotates else super().shard_values(shard)

    def elements(self, i: int, lo: int, hi: int) -> Array:
        if self._whole:
            return super().elements(i, lo, hi)
        return self.updated(self.own_shard(i, lo, hi))

    def parameter_bytes(self) -> int:
        """Returns the bytes that the parameter values take on this rank; 0 if only float32 masters
        are kept (ZeRO 3 in mixed precision), which are counted as optimizer state."""
        return 0 if self.flat is self.masters else int(self.flat.nbytes)

    def gradient_bytes(self) -> int:
        return int(self.flat_grad.nbytes)

    def slot_bytes(self) -> int:
        return super().slot_bytes() + self._values.slot_bytes + self._gradients.slot_bytes

    @contextmanager
    def reading(self) -> Iterator[None]:
        self.wait()
        was_reading, self._is_reading = self._is_reading, True
        try:
            yield
        finally:
            self._is_reading = was_reading

    @contextmanager
    def gathered(self) -> Iterator[None]:
        if self._whole:  # nested
            yield
            return
        self.wait()
        arrays = self.views(self.on.xp.zeros(self.length, self.dtype))
        for i, array in enumerate(arrays):
            array[...] = self._values.value(i)
        self._whole, self.rotates = arrays, False
        try:
            yield
            for i, p in enumerate(self.parameters):
                self.copy_from(i, p)
        finally:
            self._whole, self.rotates = [], self._values.rotates
        self._values.updated()

    # ---- gradients

    def grad_memory(self, i: int) -> Array:
        if self._is_scattered:
            sums = self.buckets.all[self.buckets.of[i]].comm
            raise ValueError(
                f"{self.parameters[i].place.path}: after a step the gradient is sharded over "
                f"{sums.size} ranks; call store.whole_gradient({i}) on all of them"
            )
        return self._gradients.grad_memory(i)

    def shard_gradient(self, shard: Shard) -> Array:
        is_packed = self._gradients.has_slots
        return self.flat_grad[shard.packed] if is_packed else super().shard_gradient(shard)

    def whole_gradient(self, i: int) -> Array:
        return self.unscaled(self._gradients.whole(i))

    def norm_shards(self, start: int, end: int) -> Iterator[Shard]:
        return within(self._norm_shards, start, end)

    def step_sums(self, counted: Sequence[Shard]) -> Array:
        self._is_scattered = True
        row = np.array(self.on_host([self.squares(counted)]))
        self.dp.all_reduce(row, "doubling")
        return row

    # ---- a step

    def begin(self) -> None:
        if self._whole:
            raise ValueError(
                "a step cannot begin within trainer.gathered_parameters(): leave it first"
            )
        self._is_scattered, self._is_reading = False, True
        super().begin()
        self._gradients.begin()

    def fixed_gradient(self, i: int) -> Array:
        return self._gradients.fixed_gradient(i)

    def start(self, b: int) -> Transfer | None:
        return self._gradients.start(b)

    def finish(self, b: int) -> None:
        self._gradients.finish(b)

    def poll(self) -> None:
        self._values.poll()

    def wait(self) -> None:
        self._values.wait()

    def wait_for_updates(self) -> None:
        super().wait_for_updates()
        if self.rotates:  # else the list gathers all values
            self._values.updated()
        self._is_reading = False

    def close(self) -> None:
        self.wait()
        self.begin()
        FlatStore(self.parameters, self.dtype, self.on)
        self.wait()
        self.gathers.free()

    def _refuse_reading(self, i: int) -> NoReturn:
        raise ValueError(
            f"{self.parameters[i].place.path}: between steps its values are sharded over "
            f"{self.dp.size} ranks along dp; read or write them in `with "
            "trainer.gathered_parameters():` on every rank"
        )


ZERO = {
    1: partial(ZeroStore, GatheredValues, WholeGradients),
    2: partial(ZeroStore, GatheredValues, GradientSlots),
    3: partial(ZeroStore, WeightSlots, GradientSlots),
}
"""The functions that make a store, by the value of --zero."""
