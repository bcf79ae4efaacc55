"""Replay: a recorded pass on memory, in place of module and tape."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta.log import Call
from nnmpi.arrays.meta.memory_plan import (
    Binding,
    arena_of,
    lifetimes,
    places_in,
    places_of,
    plan_in_parts,
)
from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.pass_list import PassList, join_moments, ready, sum_over_ranks
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.step.buffers import Received
from nnmpi.parallel.step.ports import JoinedOutputs

OnLeaf = Callable[[Any], None]


class PlannedPass:
    """A recorded pass with a plan of its memory, in the forward pass and both halves of backward.

    kept     of arrays that live longer than one part, each micro-batch in flight with its own
    scratch  of arrays within one part

    in_flight   how many micro-batches are between their forward and backward pass at once
    """

    def __init__(self, passes: PassList, in_flight: int = 1) -> None:
        self.passes, calls = passes, passes.calls
        written = *passes.inputs, *(key.words for key in passes.keys)  # before the first call
        uses = [(a, 0) for a in written]
        uses += [(a, passes.backward) for a in (*passes.outputs, *passes.seeds) if a is not None]
        uses += [(a, max(passes.second - 1, passes.backward)) for a in passes.gradients]
        outputs = [(a, 0) for a in passes.outputs]  # one may be an input that no call uses
        self.used, self.given = {*lifetimes(calls, outputs)}, places_of(passes.given)
        self.trained = frozenset(call.args[0] for call in calls if call.function is ready)
        alive = [a for key, a in lifetimes(calls, uses).items() if key not in self.given]
        starts = 0, passes.backward, passes.second
        self.kept, self.scratch = plan_in_parts(alive, starts, in_flight)
        self.calls = len(calls)

    def replay(self, memory: "Memory") -> "Replay":
        """A replay of the pass in memory that is free."""
        return memory.take(self)


class Memory:
    """The memory of the replays of a stage: a scratch arena, and an arena for each micro-batch in
    flight, in which any recorded pass may run."""

    def __init__(self) -> None:
        self._scratch, self._size = arena_of(0), 0
        self._free = list[Slot]()

    def take(self, planned: PlannedPass) -> "Replay":
        """A replay of the pass in memory that is free."""
        if planned.kept.size > self._size or planned.scratch.size > len(self._scratch):
            self._size = max(self._size, planned.kept.size)
            self._scratch = arena_of(max(len(self._scratch), planned.scratch.size))
            self._drop_free()  # they have the memory that was too small
        slot = self._free.pop() if self._free else Slot(arena_of(self._size), self._scratch, {})
        if planned not in slot.replays:
            arenas = places_in(slot.arena, planned.kept), places_in(slot.scratch, planned.scratch)
            binding = Binding(planned.given, *arenas)
            slot.replays[planned] = Replay(planned, binding, partial(self._give_back, slot))
        return slot.replays[planned]

    @property
    def size(self) -> int:
        """The bytes of the memory that is not in use."""
        return len(self._scratch) + sum(len(slot.arena) for slot in self._free)

    def clear(self) -> None:
        """Frees all memory that is not in use; the next passes allocate it again."""
        self._scratch, self._size = arena_of(0), 0
        self._drop_free()

    def _drop_free(self) -> None:
        for slot in self._free:
            slot.drop()
        self._free.clear()

    def _give_back(self, slot: "Slot") -> None:
        if slot.scratch is self._scratch:
            self._free.append(slot)
        else:
            slot.drop()


class Slot(NamedTuple):
    """The arena of a micro-batch in flight, and the replays that are bound to it."""

    arena: np.ndarray
    scratch: np.ndarray
    replays: dict[PlannedPass, "Replay"]

    def drop(self) -> None:
        """Ends the replays, so that the arena is freed as soon as nobody reads it."""
        for replay in self.replays.values():
            replay.end()
        self.replays.clear()


class RunnablePass(Protocol):
    """A pass that runs in place of module and tape: a `Replay`, or graphs on a GPU."""

    @property
    def outputs(self) -> Sequence[Array]:
        """The results of the forward pass."""

    @property
    def gradients(self) -> Sequence[Array]:
        """The gradients of inputs that come from another stage."""

    def free(self) -> object:
        """Lets another micro-batch use the memory."""

    def forward(self, arrays: Sequence[Array], step: int, stats: BatchStats) -> None:
        """Runs the forward pass on these inputs, as in this step."""

    def first_half(self, seeds: Sequence[Array | None], on_leaf: OnLeaf | None = None) -> None:
        """Runs the backward pass, or its first half, from the gradients of the outputs."""

    def second_half(self, on_leaf: OnLeaf | None = None) -> None:
        """Runs the rest of the backward pass; the memory may then serve another micro-batch."""


class Replay:
    """A recorded pass on memory, for one micro-batch at a time; `free` lets another one use the
    memory."""

    def __init__(self, planned: PlannedPass, binding: Binding, free: Callable[[], object]) -> None:
        passes, self.free = planned.passes, free
        self._inputs = [
            (k, binding.array(array))
            for k, array in enumerate(passes.inputs)
            if id(array) in planned.used
        ]
        self._keys = [(binding.array(key.words), key) for key in passes.keys]
        self.outputs = [*map(binding.array, passes.outputs)]
        self._seeds = [None if a is None else binding.array(a) for a in passes.seeds]
        self.gradients = [*map(binding.array, passes.gradients)]
        own: dict[Any, Any] = {
            ready: self._ready,
            join_moments: self._join,
            sum_over_ranks: self._sum,
        }
        calls = [*map(binding.call, passes.calls)]
        calls = [Call(own.get(call.function, call.function), *call[1:]) for call in calls]
        backward, second = passes.backward, passes.second
        self._parts = calls[:backward], calls[backward:second], calls[second:]
        self._last = 2 if second < len(calls) else 1  # the part that computes gradients
        self._on_leaf: OnLeaf | None = None
        self._adds = passes.adds
        self._trained = planned.trained

    def end(self) -> None:
        """Drops the calls, which refer to this object and to its slot."""
        self._parts, self.free = ([], [], []), list

    def _ready(self, p: Parameter) -> None:
        p.has_grad = True
        if self._on_leaf is not None:
            self._on_leaf(p)

    def _join(self, n: int, mean: Array, m2: Array, total: int, means: Array, m2s: Array) -> None:
        joined = self._stats.moments(Moments(n, mean, m2), lambda moments: None)
        assert joined.n == total, (joined.n, total)
        means[...], m2s[...] = joined.mean, joined.m2

    def _sum(self, sums: Array, total: Array) -> None:
        total[...] = self._stats.sum(sums)

    def _run(self, part: int) -> None:
        if part == self._last and any(p.has_grad is not self._adds for p in self._trained):
            raise RuntimeError("another backward pass came before, or none, than was foreseen")
        for function, args, options, _ in self._parts[part]:
            function(*args, **options)

    def forward(self, arrays: Sequence[Array], step: int, stats: BatchStats) -> None:
        """Runs the forward pass on these inputs, as in this step."""
        self._stats = stats
        for k, memory in self._inputs:
            np.copyto(memory, arrays[k])
        for words, (seed, purpose, names, _) in self._keys:
            words[...] = keyed.key(seed, purpose, step, *names)
        self._run(0)

    def first_half(self, seeds: Sequence[Array | None], on_leaf: OnLeaf | None = None) -> None:
        """Runs the backward pass, or its first half, from the gradients of the outputs."""
        for memory, seed in zip(self._seeds, seeds, strict=True):
            if memory is not None and seed is not None:
                np.copyto(memory, seed)
        self._on_leaf = on_leaf
        self._run(1)
        self._on_leaf = None

    def second_half(self, on_leaf: OnLeaf | None = None) -> None:
        """Runs the rest of the backward pass; the memory may then serve another micro-batch."""
        self._on_leaf = on_leaf
        self._run(2)
        self._on_leaf = None  # it may hold copies of gradients
        self.free()


class Rest:
    """The second half of a backward pass, as the tape returns it."""

    def __init__(self, finish: Callable[..., object]) -> None:
        self.finish = finish


class Backward(Protocol):
    """A pass whose two halves run one after the other, or later."""

    def first(self, seeds: Sequence[Any], on_leaf: OnLeaf | None, until: Any) -> None:
        """Runs the first half; without `until` all of it."""

    def second(self, on_leaf: OnLeaf | None) -> None:
        """Runs what is left."""


class Replayed:
    """A micro-batch that is replayed; `received` are the inputs that need a gradient."""

    def __init__(self, replay: RunnablePass, received: Sequence[Received]) -> None:
        self._replay, self._received = replay, received

    def first(self, seeds: Sequence[Any], on_leaf: OnLeaf | None, until: Any) -> None:
        """Runs the first half, or all of it, and passes on the gradients of inputs."""
        self._replay.first_half(seeds, on_leaf)
        for x, gradient in zip(self._received, self._replay.gradients, strict=True):
            x.set_gradient(gradient)

    def second(self, on_leaf: OnLeaf | None) -> None:
        """Runs what is left."""
        self._replay.second_half(on_leaf)


class ReplayedLoss:
    """The root of a pass that ends with a loss."""

    requires_grad = True

    def __init__(self, loss: Array, passes: Backward) -> None:
        self.data, self._passes = loss, passes

    def backward(
        self, seed: Array, on_leaf: OnLeaf | None = None, until: Any = None
    ) -> Rest | None:
        """Runs the backward pass, from the gradient of the loss; with `until` half of it."""
        return _backward(self._passes, [seed], on_leaf, until)


class ReplayedOutputs(JoinedOutputs):
    """The root of a pass whose outputs are sent to another stage."""

    __slots__ = ("_passes",)

    def __init__(self, outputs: Sequence[Tensor], passes: Backward) -> None:
        super().__init__(outputs)
        self.requires_grad, self.node, self._passes = True, None, passes

    def backward(  # type: ignore[override]
        self, seed: Array, on_leaf: OnLeaf | None = None, until: Any = None
    ) -> Rest | None:
        """Runs the backward pass, from the gradients that `seed` has set; with `until` half of
        it."""
        return _backward(self._passes, self._gradients, on_leaf, until)


def _backward(
    passes: Backward, seeds: Sequence[Any], on_leaf: OnLeaf | None, until: Any
) -> Rest | None:
    passes.first(seeds, on_leaf, until)
    if until is not None:
        return Rest(passes.second)
    passes.second(on_leaf)
    return None
