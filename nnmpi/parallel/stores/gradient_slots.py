"""The gradients of a rank under ZeRO: WholeGradients for ZeRO 1, GradientSlots for ZeRO 2 and 3.

A slot is memory for the gradients of one bucket until they are summed; buckets use it in turn:

    open      a backward pass begins to use the bucket
    start     the pass is done with the bucket: its reduce-scatter starts
    finish    the sum is complete: this rank's shard is added to `flat`, the sums of the step

This happens once for each backward pass of a stage, in the order of the rank's list, so that the
same layout always gives the same bits. A bucket always has the same slot, so that recorded passes
write to fixed addresses.
"""

from collections.abc import Mapping

from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import types_of
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.parallel.arrangement.flat_buffer import FlatSlice
from nnmpi.parallel.recorder import Do
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.gradients import gradient_slots
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import Transfer, wire_of
from nnmpi.schedules.op import Kind


class WholeGradients:
    """Keeps all gradients of this rank in the flat array `flat` (ZeRO 1). The sum of a bucket
    replaces them, at least in this rank's shard."""

    slot_bytes, has_slots = 0, False

    def __init__(self, store: LocalStore) -> None:
        self._buckets, self._dp = store.buckets, wire_of(store.dp, store.on)
        self.ops: Mapping[Kind, Do] = {}
        self.flat = store.on.xp.zeros(store.length, store.dtype)
        self._memories = store.views(self.flat)

    def begin(self) -> None:
        """Does nothing: new gradients overwrite those of the last step."""

    def grad_memory(self, i: int) -> Array:
        """Returns the array to which backward passes write or add gradient i."""
        return self._memories[i]

    def start(self, b: int) -> Transfer | None:
        """Starts to sum the gradients of bucket b over its ranks: by a reduce-scatter over dp if
        the chosen algorithm has one, otherwise by an all-reduce."""
        (start, stop, comm), algorithm = self._buckets.all[b], self._buckets.algorithm
        if comm.size == 1:
            return None
        if comm is self._dp and algorithm in REDUCE_SCATTERS:
            return comm.start_reduce_scatter(self.flat[start:stop], algorithm)
        return comm.start(self.flat[start:stop], algorithm)

    def fixed_gradient(self, i: int) -> Array:
        return self._memories[i]

    def finish(self, b: int) -> None:
        """Does nothing when the sum of bucket b is complete, since the sum is written in place."""

    def whole(self, i: int) -> Array:
        """Returns the whole gradient of parameter i, gathered from the shards of ranks. Every rank
        that has the parameter calls it, also those of other stages."""
        start, stop, comm = self._buckets.all[self._buckets.of[i]]
        # also after an all-reduce: a rank has clipped only its own shards
        comm.all_gather(self.flat[start:stop], GATHER)
        return self._memories[i]


class GradientSlots:
    """Keeps the gradients of a rank under ZeRO 2 and 3: `flat` has this rank's shards, summed over
    all ranks and over the micro-batches so far; others are in slots, which buckets use in turn."""

    has_slots = True

    def __init__(self, store: LocalStore) -> None:
        self._parameters, self._buckets = store.parameters, store.buckets
        self._dp, self._on = wire_of(store.dp, store.on), store.on
        self.ops: Mapping[Kind, Do] = {Kind.OPEN: lambda op: self.open(op.at)}
        self.flat = store.on.xp.zeros(store.shards[-1].packed.stop, types_of(store.dtype).sums)
        self._shards = [self.flat[shard.packed] for shard in store.shards]
        self._of = self._buckets.of
        slots = gradient_slots(chain_of(store.arrangement, store.rank))
        in_slots = self._buckets.in_slots(slots, self._parameters, store.dtype, store.on)
        self._rows, self._memories, self.slot_bytes = in_slots
        self._chunks = [self._dp.chunk(len(row)) for row in self._rows]
        # buckets that passes may write; those whose shard in `flat` has a sum of this step
        self._open, self._begun = set[int](), set[int]()
        self._padding = [self._padding_of(b) for b in range(len(self._rows))]

    def begin(self) -> None:
        """Discards the sums of the last step; no bucket may be written to before its `open`."""
        self._open.clear()
        self._begun.clear()

    def open(self, b: int) -> None:
        """Lets a backward pass write bucket b to its slot, and zeroes the padding."""
        self._open.add(b)
        for lo, hi in self._padding[b]:
            self._rows[b][lo:hi] = 0

    def grad_memory(self, i: int) -> Array:
        """Returns the array to which a backward pass writes the gradient of parameter i; raises
        ValueError if its bucket is not open, because another bucket may use the memory then."""
        b = self._of[i]
        if b not in self._open:
            raise ValueError(
                f"{self._parameters[i].place.path} gets a gradient where no layer that uses it "
                "runs: use --zero 1"
            )
        return self._memories[i]

    def fixed_gradient(self, i: int) -> Array:
        """Returns that array also while another bucket is in this memory."""
        return self._memories[i]

    def start(self, b: int) -> Transfer:
        """Starts the reduce-scatter of bucket b, to whose gradients no pass adds any more."""
        self._open.remove(b)
        return self._dp.start_reduce_scatter(self._rows[b], self._buckets.algorithm)

    def finish(self, b: int) -> None:
        """Adds this rank's shard of bucket b to the sum over earlier micro-batches."""
        new, shard = self._rows[b][self._chunks[b]], self._shards[b]
        if b in self._begun:
            shard += new
        else:  # not added to zeros: a copy is cheaper than clearing `flat` in each step
            shard[...] = new
            self._begun.add(b)

    def whole(self, i: int) -> Array:
        """Returns summed gradient i, from all shards; every rank along dp calls it."""
        b = self._of[i]
        start, stop, _ = self._buckets.all[b]
        array = self._on.xp.zeros(stop - start, self.flat.dtype)
        array[self._chunks[b]] = self._shards[b]
        self._dp.all_gather(array, GATHER)
        return self._buckets.views(array, b, self._parameters)[i]

    def _padding_of(self, b: int) -> list[FlatSlice]:
        """Returns the gaps between parameters of bucket b, from its start, which are set to 0."""
        origin, spans = self._buckets.all[b].start, self._buckets.spans
        sizes = ((i, self._parameters[i].size) for i in self._buckets.members[b])
        gaps = ((spans[i][0] + size - origin, spans[i][1] - origin) for i, size in sizes)
        return [(lo, hi) for lo, hi in gaps if lo < hi]
