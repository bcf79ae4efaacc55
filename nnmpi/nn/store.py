"""FlatStore: the memory of parameters as two flat buffers, of values and of gradients.

Rules:

- Padding is always 0, in values and in gradients, since updates and norms run over whole slices of
  the flat buffer.
- Only `spans_of` decides where a parameter starts: at a multiple of ALIGN elements. Another ALIGN
  would move the edges of the chunks in which an all-reduce adds up, and so change the last bits of
  sums.
- A parameter takes its `padded_size`, not its size: ranks with parts of unequal sizes need buffers
  of equal length, since an all-reduce adds them up.
- The optimizer and Update access memory by `owned` and `updates` only. A store that keeps a part of
  the memory, or keeps it elsewhere or in another type, overrides the methods that these call. No
  other code depends on the class of the store.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.kernels.precision import cast, cast_loop, merge_loop
from nnmpi.arrays.kernels.steps import PLAIN, MixedStep
from nnmpi.autograd.recording import Outdated, Storage, memory_row
from nnmpi.nn.parameter import Parameter, in_shape, memory_order
from nnmpi.nn.single_store import Store

ALIGN = 16
"""Each parameter starts at a multiple of this many elements: a cache line of float32."""


class Shard(NamedTuple):
    """Elements start..stop-1 of a flat buffer, which this rank updates; it may cut through
    parameters and their padding, unlike a `Range`. In a buffer of this rank's shards alone, it
    begins at `offset`."""

    start: int
    stop: int
    offset: int

    @property
    def packed(self) -> slice:
        """The slice of this shard in a buffer of this rank's shards alone."""
        return slice(self.offset, self.offset + self.stop - self.start)


class Operands(NamedTuple):
    """The flat arrays of one optimizer update, and the number t of the step. In 16-bit training
    `values` are float32 masters, and `mixed` has the 16-bit values to which they are rounded."""

    values: Array
    grads: Array
    state: dict[str, Array]
    t: int
    mixed: MixedStep = PLAIN

    def negative(self) -> "Operands":
        """Returns operands for the same memory with which an update reads each gradient with the
        opposite sign, as the option `maximize` needs. Nothing is copied."""
        return self._replace(mixed=self.mixed.times(-1.0))

    def part(self, part: slice) -> "Operands":
        """Returns the operands restricted to a slice of the elements."""
        state = {name: array[part] for name, array in self.state.items()}
        mixed = self.mixed.part(part)
        return Operands(self.values[part], self.grads[part], state, self.t, mixed)

    def blocks(self, is_whole: bool = False) -> Iterator["Operands"]:
        """Yields the operands as blocks of float32 values and unscaled gradients, for optimizers
        that do not support 16-bit training themselves.

        If nothing has 16 bits, or with `is_whole`, there is one block. Masters whose 16-bit values
        a program has changed are set to these before a block is yielded; when the next one is
        requested, the updated masters are rounded to 16 bits.
        """
        if self.grads.dtype == self.values.dtype and self.mixed.is_empty:
            yield self
            return
        n = len(self.values)
        block_size = n if is_whole else min(n, backend.of(self.values).chunk_bytes // 64)
        for i in range(0, n, block_size):
            block = self.part(slice(i, min(i + block_size, n)))
            grads, values = cast(block.grads, block.values.dtype), block.mixed.values
            if block.mixed.factor != 1:
                grads = grads * block.mixed.factor
            if values is not None:
                merge_loop(block.values, values)
            yield Operands(block.values, grads, block.state, block.t)
            if values is not None:
                cast_loop(block.values, values)

    def sum_for(self, option: str, group: Mapping[str, Any], name: str) -> Array:
        """Returns the state array `name`, such as a momentum buffer, which the value of `option` in
        a parameter group requires; raises ValueError if the optimizer was created without it."""
        if name not in self.state:
            raise ValueError(
                f"{option}={group[option]} needs a state array, which this optimizer was created "
                f"without: create it with {option}={group[option]}, which may then change between "
                "steps"
            )
        return self.state[name]


class FlatStore(Store):
    """The memory of parameters as two flat buffers, `flat` (values) and `flat_grad`, with views.

    Parameter i and its padding, which is always zero, lie at elements `spans[i]`. `reserved`
    elements precede the first parameter. A subclass overrides `allocate` if several ranks share the
    memory, or if a rank keeps only the slices that it updates (`shards`). The optimizer updates
    values of type `updated_dtype`.
    """

    _is_between_runs = False
    """True between two runs if this rank updates only a part of the values."""

    def __init__(
        self, parameters: Sequence[Parameter], dtype: Any, on: Backend, reserved: int = 0
    ) -> None:
        self.parameters, self.dtype, self.on = tuple(parameters), np.dtype(dtype), on
        self.updated_dtype = self.dtype
        self.spans = spans_of([p.padded_size for p in self.parameters], reserved)
        self.length = max((end for _, end in self.spans), default=_padded(reserved))
        self.shards = shards_of([(0, self.length)])
        self.allocate()
        for i, p in enumerate(self.parameters):
            if not p.is_drawn:  # `copy_from` would have them drawn as float32 on the CPU
                p.draw(self.dtype, self.on)
            self.copy_from(i, p)
            p.move(self, i)

    def allocate(self) -> None:
        """Allocates the memory of values and gradients."""
        self.flat = self.on.xp.zeros(self.length, self.dtype)
        self.values = self.views(self.flat)
        self.flat_grad = self.on.xp.zeros(self.length, self.dtype)
        self.grad_memories = self.views(self.flat_grad)

    def copy_from(self, i: int, p: Parameter) -> None:
        """Copies values and gradient of p from its store, as parameter number i."""
        self.values[i][...] = self.on.asarray(p.array)
        if p.grad_array is not None:
            self.grad_memories[i][...] = self.on.asarray(p.grad_array)

    def value(self, i: int) -> Array:
        return self.values[i]

    def grad_memory(self, i: int) -> Array:
        return self.grad_memories[i]

    def owned(self, shard: Shard) -> tuple[Array, Array, MixedStep]:
        """Returns (values, gradients, 16-bit values) of a shard that this rank updates."""
        return self.shard_values(shard), self.shard_gradient(shard), PLAIN

    def updates(
        self, shards: Iterable[Shard], state: Mapping[str, Array], at: int, t: int
    ) -> Iterator[Operands]:
        """Yields the arrays for update number t: one Operands for each of `shards`, which the
        caller updates before it requests the next. Their elements begin at index `at` of the
        arrays of `state`."""
        if self._is_between_runs:
            self._refuse_update()
        for shard in shards:
            values, grads, mixed = self.owned(shard)
            state_part, stop = dict[str, Array](), at + len(values)
            for name, array in state.items():
                state_part[name] = array[at:stop]
            yield Operands(values, grads, state_part, t, mixed)
            at = stop

    def own_shards(self, start: int, end: int) -> Iterator[Shard]:
        """Returns the shards of this rank within elements start..end-1 of the flat buffer."""
        if self._is_between_runs:
            self._refuse_update()
        return within(self.shards, start, end)

    def _refuse_update(self) -> NoReturn:
        raise ValueError(
            "each rank updates a part of the parameters of this Trainer: call trainer.close() "
            "before another optimizer updates them, or trainer.fit(epochs=N)"
        )

    def shard_values(self, shard: Shard) -> Array:
        """Returns the parameter values in a shard, a slice of the flat buffer."""
        return self.flat[shard.start : shard.stop]

    def shard_gradient(self, shard: Shard) -> Array:
        """Returns the gradients in a shard, a slice of the flat buffer."""
        return self.flat_grad[shard.start : shard.stop]

    def readable(self, i: int) -> list[tuple[int, int]]:
        """Returns (lo, hi) of the ranges of parameter i whose values are in this rank's memory, so
        that it can read them without communication: at least one range, which may be empty."""
        return [(0, self.parameters[i].size)]

    def elements(self, i: int, lo: int, hi: int) -> Array:
        """Returns values lo..hi-1 of parameter i, within a range of `readable`."""
        return memory_order(self.parameters[i], self.value(i))[lo:hi]

    def reading(self) -> AbstractContextManager[None]:
        """Returns a context in which parameters can be read, such as a training step. If each rank
        keeps only a part of the values, they are gathered when they are read: all ranks that share
        the values enter it together, and read the same parameters in the same order."""
        return nullcontext()

    def gathered(self) -> AbstractContextManager[None]:
        """A context in which each rank has all values, and can read and change them without
        communication. All ranks that share the values enter and leave it together."""
        return nullcontext()

    @contextmanager
    def between_runs(self) -> Iterator[None]:
        """A context like `gathered`, between two training runs. If this rank updates only a part of
        the values, `updates` raises ValueError, so that no other optimizer can."""
        with self.gathered():
            self._is_between_runs = self.shards != shards_of([(0, self.length)])
            try:
                yield
            finally:
                self._is_between_runs = False

    def parameter_bytes(self) -> int:
        """Bytes of values; memory of a node counts on its first rank."""
        return sum(value.nbytes for value in self.values)

    def gradient_bytes(self) -> int:
        """Bytes of gradients; memory of a node counts on its first rank."""
        return sum(memory.nbytes for memory in self.grad_memories)

    def slot_bytes(self) -> int:
        """Bytes of buffers for values or gradients that are gathered for a while."""
        return 0

    def views(self, flat: Array) -> list[Array]:
        """Returns each parameter's view into `flat`, which is laid out as this store."""
        pairs = zip(self.parameters, self.spans, strict=True)
        return [self.view(flat, p, start) for p, (start, _) in pairs]

    @staticmethod
    def view(flat: Array, p: Parameter, start: int) -> Array:
        """Returns the view of `flat` at `start` in p's shape and memory order."""
        return in_shape(flat[start : start + p.size], p.shape, p.memory_axes)


def stores_of(parameters: Iterable[Parameter]) -> list[FlatStore]:
    """Returns the flat stores that hold these parameters, each once."""
    stores = dict.fromkeys(p.store for p in parameters)
    return [store for store in stores if isinstance(store, FlatStore)]


@contextmanager
def reading(parameters: Iterable[Parameter]) -> Iterator[None]:
    """A context in which these parameters can be read between steps. All ranks that share their
    values have to enter it, and read the parameters in the same order."""
    with ExitStack() as stack:
        for store in stores_of(parameters):
            stack.enter_context(store.reading())
        yield


def values_of(p: Parameter) -> Array:
    """Returns p's values between steps; all ranks that share them call it."""
    with reading([p]):
        return p.array


def shards_of(stretches: Iterable[tuple[int, int]]) -> list[Shard]:
    """Returns slices of a flat buffer as Shards, at the offsets of those before."""
    shards, at = [], 0
    for start, stop in stretches:
        shards.append(Shard(start, stop, at))
        at += stop - start
    return shards


_STOP = attrgetter("stop")


def within(shards: Sequence[Shard], start: int, end: int) -> Iterator[Shard]:
    """Yields the parts of shards within elements start..end-1, in order."""
    # shards do not overlap, so their ends are sorted too
    for i in range(bisect_right(shards, start, key=_STOP), len(shards)):
        a, b, at = shard = shards[i]
        if a >= end:
            return
        if start <= a < b <= end:
            yield shard
            continue
        lo, hi = max(a, start), min(b, end)
        if lo < hi:
            yield Shard(lo, hi, at + lo - a)


def spans_of(rooms: Iterable[int], reserved: int = 0) -> list[tuple[int, int]]:
    """Returns (start, end) in a flat buffer for each parameter, with its padding. `rooms` are the
    numbers of elements that the parameters need; `reserved` elements come before the first one."""
    spans, end = [], _padded(reserved)
    for room in rooms:
        start, end = end, end + _padded(room)
        spans.append((start, end))
    return spans


def _padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def flatten(parameters: Sequence[Parameter]) -> None:
    """Moves parameters that are in no flat store into a new one."""
    dtypes = {str(p.dtype) for p in parameters}
    if len(dtypes) > 1:
        _refuse_types(dtypes)
    loose = [p for p in parameters if not isinstance(p.store, FlatStore)]
    if loose:
        gather(loose, dtypes.pop(), backend.of(loose[0].array))


def _refuse_types(dtypes: Iterable[str]) -> NoReturn:
    raise ValueError(
        f"parameters of different types ({', '.join(sorted(dtypes))}) in one optimizer: "
        "give each type its own optimizer, or use model.to(dtype=...)"
    )


def gather(parameters: Sequence[Parameter], dtype: Any, on: Backend) -> None:
    """Moves parameters, and tensors in their memory, into a new flat store."""
    shared = [(p, p._array) for p in parameters if p.storage.sharing or p.given_grad]
    FlatStore(parameters, dtype, on)
    for p, old in shared:
        (memory_row("leave_values") or _leave_values)(p, old)


def _leave_values(p: Parameter, old: Array) -> None:
    """Without the add-on: to use a tensor that shared the memory of p raises an error."""
    p.storage.sharing_record().outdated, p.storage = Outdated.MOVED, Storage()
