"""FlatStore: all parameters in one flat buffer, all gradients in another of the same layout.

Rules:

- Padding is always 0, in values and in gradients: updates and norms run over whole stretches.
- `spans_of` alone says where a parameter lies. The arrangement calls it too, so that buckets are
  known before there is a store. Another ALIGN moves the edges of chunks, and the last bits of sums.
- A parameter takes its `room`, not its size: ranks with parts of unequal sizes have buffers of one
  length, which are summed together.
- The optimizer and Update see memory through `owned` and `updates` alone. A store that keeps less,
  elsewhere, or in another type overrides what these call; nobody asks which store it is.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.kernels.steps import PLAIN, MixedStep, scale_loop
from nnmpi.nn.parameter import Parameter, in_shape, memory_order
from nnmpi.nn.place import Range
from nnmpi.nn.single_store import Store

ALIGN = 16
"""Each parameter starts at a multiple of this many elements: a cache line of float32."""


class Shard(NamedTuple):
    """Elements start to stop - 1 of a flat buffer, which this rank updates.

    A bucket is cut across parameters and their padding, so this is no `Range`, which is of one
    tensor: `Optimizer.owned` has the ranges. The elements begin at `at` in a buffer that has its
    shards only, one behind the other.
    """

    start: int
    stop: int
    at: int

    @property
    def packed(self) -> slice:
        """Where it is in a buffer that has shards only."""
        return slice(self.at, self.at + self.stop - self.start)


class Operands(NamedTuple):
    """The operands of one update: flat arrays of values, gradients and optimizer state (by name),
    the number of the step, and in 16-bit training the 16-bit values that masters are rounded to."""

    values: Array
    grads: Array
    sums: dict[str, Array]
    t: int
    mixed: MixedStep = PLAIN

    def part(self, part: slice) -> "Operands":
        """Some of the numbers."""
        state = {name: array[part] for name, array in self.sums.items()}
        mixed = self.mixed.part(part)
        return Operands(self.values[part], self.grads[part], state, self.t, mixed)

    def sum_for(self, option: str, group: Mapping[str, Any], name: str) -> Array:
        """The state array that an option of the group needs; raises ValueError if there is none."""
        if name not in self.sums:
            raise ValueError(
                f"{option}={group[option]} needs a state array, which this optimizer was created "
                f"without: create it with {option}={group[option]}, which may then change between "
                "steps"
            )
        return self.sums[name]


class FlatStore(Store):
    """Two flat buffers, `flat` and `flat_grad`; each parameter is a view into both.

    Parameter i is at `spans[i]`, including its padding, which is always zero. `reserved` elements
    are before the first parameter. Subclasses that share memory, or keep only their `shards` of
    it, have another `allocate`. The optimizer moves numbers of `updated_dtype`.
    """

    _is_between_runs = False
    """Whether no step is to come, and this rank updates a part of the values only."""

    def __init__(
        self, parameters: Sequence[Parameter], dtype: Any, on: Backend, reserved: int = 0
    ) -> None:
        self.parameters, self.dtype, self.on = tuple(parameters), np.dtype(dtype), on
        self.updated_dtype = self.dtype
        self.spans = spans_of([p.room for p in self.parameters], reserved)
        self.length = max((end for _, end in self.spans), default=_padded(reserved))
        self.shards = shards_of([(0, self.length)])
        self.allocate()
        for i, p in enumerate(self.parameters):
            if not p.is_drawn:
                p.draw(self.dtype, self.on)
            self.take(i, p)
            p.move(self, i)

    def allocate(self) -> None:
        """Takes the memory of values and gradients."""
        self.flat = self.on.xp.zeros(self.length, self.dtype)
        self.values = self.views(self.flat)
        self.flat_grad = self.on.xp.zeros(self.length, self.dtype)
        self.grad_memories = self.views(self.flat_grad)

    def take(self, i: int, p: Parameter) -> None:
        """Copies the values of p and its gradient, if any, from the store that it is in."""
        self.values[i][...] = self.on.asarray(p.data)
        if p.grad is not None:
            self.grad_memories[i][...] = self.on.asarray(p.grad)

    def value(self, i: int) -> Array:
        """The values of parameter i."""
        return self.values[i]

    def grad_memory(self, i: int) -> Array:
        """The memory of the gradient of parameter i."""
        return self.grad_memories[i]

    def owned(self, start: int, end: int) -> Iterator[tuple[Array, Array, MixedStep]]:
        """(values, gradients, what is beside masters) of what this rank updates of elements start
        to end - 1."""
        for shard in self.own_shards(start, end):
            yield self.shard_values(shard), self.shard_gradient(shard), PLAIN

    def updates(
        self, start: int, end: int, state: Mapping[str, Array], at: int, t: int
    ) -> Iterator[Operands]:
        """The operands of update number t in elements start to end - 1: what is `owned`, with its
        optimizer state, which begins at `at` in each array of `state`.

        Each one is changed before the next one is asked for.
        """
        for values, grads, mixed in self.owned(start, end):
            n, state_part = len(values), dict[str, Array]()
            for name, array in state.items():
                state_part[name] = array[at : at + n]
            yield Operands(values, grads, state_part, t, mixed)
            at += n

    def scale(self, array: Array, factor: float) -> None:
        """Multiplies what a step changes besides its updates: gradients, or optimizer state."""
        scale_loop(array, factor)

    def own_shards(self, start: int, end: int) -> Iterator[Shard]:
        """The shards of elements start to end - 1 that this rank updates."""
        if self._is_between_runs:
            raise ValueError(
                "each rank updates a part of the parameters of this Trainer: call trainer.close() "
                "before another optimizer updates them, or trainer.fit(epochs=N)"
            )
        return within(self.shards, start, end)

    def shard_values(self, shard: Shard) -> Array:
        """The values in a shard."""
        return self.flat[shard.start : shard.stop]

    def shard_gradient(self, shard: Shard) -> Array:
        """The gradients in a shard."""
        return self.flat_grad[shard.start : shard.stop]

    def readable(self, i: int) -> list[Range]:
        """The ranges of parameter i that this rank reads alone; at least one, perhaps empty."""
        return [self.parameters[i].place.range()]

    def numbers(self, i: int, lo: int, hi: int) -> Array:
        """Values lo to hi - 1 of parameter i, in the order of its memory, which are readable."""
        return memory_order(self.parameters[i], self.value(i))[lo:hi]

    def reading(self) -> AbstractContextManager[None]:
        """Within it all ranks that have parts of the values read the same parameters in one order.

        A step is that too. Where ranks have parts, values cannot be read at any other time.
        """
        return nullcontext()

    def gathered(self) -> AbstractContextManager[None]:
        """Within it a rank alone can read all values; what is written is kept at its end.

        Every rank that has parts of the values enters and leaves it, between steps.
        """
        return nullcontext()

    @contextmanager
    def between_runs(self) -> Iterator[None]:
        """`gathered`, between two runs, when no optimizer may update a part of the values."""
        with self.gathered():
            self._is_between_runs = self.shards != shards_of([(0, self.length)])
            try:
                yield
            finally:
                self._is_between_runs = False

    def parameter_bytes(self) -> int:
        """The memory of values; memory that a node shares counts on its first rank only."""
        return sum(value.nbytes for value in self.values)

    def gradient_bytes(self) -> int:
        """The memory of gradients; memory that a node shares counts on its first rank only."""
        return sum(memory.nbytes for memory in self.grad_memories)

    def slot_bytes(self) -> int:
        """The memory in which values or gradients are for a while only."""
        return 0

    def views(self, flat: Array) -> list[Array]:
        """A view for each parameter into a buffer with the layout of `flat`."""
        pairs = zip(self.parameters, self.spans, strict=True)
        return [self.view(flat, p, start) for p, (start, _) in pairs]

    @staticmethod
    def view(flat: Array, p: Parameter, start: int) -> Array:
        """A view of the shape of p; the order of the axes in memory is `p.memory_axes`."""
        return in_shape(flat[start : start + p.size], p.shape, p.memory_axes)


def stores_of(parameters: Iterable[Parameter]) -> list[FlatStore]:
    """The flat stores that hold these parameters, each once."""
    stores = dict.fromkeys(p.store for p in parameters)
    return [store for store in stores if isinstance(store, FlatStore)]


@contextmanager
def reading(parameters: Iterable[Parameter]) -> Iterator[None]:
    """Within it these parameters are read between steps, by all ranks that have parts of
    their values, in one order."""
    with ExitStack() as stack:
        for store in stores_of(parameters):
            stack.enter_context(store.reading())
        yield


def values_of(p: Parameter) -> Array:
    """The values of p between steps; all ranks that have parts of them call it, in one order."""
    with reading([p]):
        return p.data


def shards_of(stretches: Iterable[tuple[int, int]]) -> list[Shard]:
    """The shards of these stretches, (start, stop), in their order."""
    shards, at = [], 0
    for start, stop in stretches:
        shards.append(Shard(start, stop, at))
        at += stop - start
    return shards


def within(shards: Sequence[Shard], start: int, end: int) -> Iterator[Shard]:
    """The parts of the shards, in the order of memory, that lie in elements start to end - 1."""
    first = bisect_right(shards, start, key=attrgetter("stop"))
    for a, b, at in islice(shards, first, None):
        if a >= end:
            return
        lo, hi = max(a, start), min(b, end)
        if lo < hi:
            yield Shard(lo, hi, at + lo - a)


def spans_of(rooms: Iterable[int], reserved: int = 0) -> list[tuple[int, int]]:
    """(start, end) of stretches with room for so many elements each, behind what is reserved."""
    spans, end = [], _padded(reserved)
    for room in rooms:
        start, end = end, end + _padded(room)
        spans.append((start, end))
    return spans


def _padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def flatten(parameters: Sequence[Parameter]) -> None:
    """Move parameters that are not in a flat store into one, of their type and on their device."""
    dtypes = {str(p.dtype) for p in parameters}
    if len(dtypes) > 1:
        raise ValueError(
            f"parameters of different types ({', '.join(sorted(dtypes))}) in one optimizer: "
            "give each type an optimizer of its own, or use model.to(dtype=...)"
        )
    loose = [p for p in parameters if not isinstance(p.store, FlatStore)]
    if loose:
        FlatStore(loose, dtypes.pop(), backend.of(loose[0].data))
