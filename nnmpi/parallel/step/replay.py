"""Replay: runs a forward and backward pass that was recorded earlier, without calling modules or
autograd again; on a CPU as kernel calls on memory that was planned for them."""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import progress_hook
from nnmpi.arrays.meta.log import Call, assign
from nnmpi.arrays.meta.memory_plan import Binding, arena_of, places_in
from nnmpi.autograd.ops.norm import Moments
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import BatchStats
from nnmpi.nn.record import join_moments, progress, ready, sum_over_ranks, uses
from nnmpi.parallel.step.buffers import Received
from nnmpi.parallel.step.recorded_pass import PlannedPass


class Replay:
    """Runs a recorded pass for one micro-batch at a time: as calls on a CPU (`BoundCalls`), or as a
    device has captured it. A subclass runs the forward pass and, by `_first` and `_second`, the
    halves of the backward pass; if that was recorded as a whole, `_second` runs all.

    calls       the number of function calls, or of graphs, that run it
    gradients   of those inputs that another stage has sent
    received    the inputs that get these gradients; empty if they are only compared
    free        declares that the micro-batch is done, so that another one may use the memory
    """

    calls: int
    outputs: Sequence[Array]
    gradients: Sequence[Array]
    received: Sequence[Received] = ()
    free: Callable[[], object]

    def forward(
        self, arrays: Sequence[Array], step: int, stats: BatchStats
    ) -> Generator[None, None, None]:
        """Runs the forward pass on `arrays`, with the random numbers of this step; yields between
        units, so that its caller can communicate there."""
        raise NotImplementedError

    def _first(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Runs the first half of the backward pass, from the outputs' gradients."""
        raise NotImplementedError

    def _second(self) -> Generator[None, None, None]:
        """Runs the rest of the backward pass. Yields between units."""
        raise NotImplementedError

    def release(self) -> None:
        """Does nothing: the outputs lie in memory of this object."""

    def backward(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        yield from self._first(seeds)
        yield from self._second()
        self._pass_on()

    def first_half(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        yield from self._first(seeds)
        self._pass_on()

    def second_half(self) -> Generator[None, None, None]:
        return self._second()

    def _pass_on(self) -> None:
        if self.received:
            for x, gradient in zip(self.received, self.gradients, strict=True):
                x.set_gradient(gradient)
            self.received = ()


class BoundCalls(Replay):
    """The calls of a recorded pass, bound to the memory of one micro-batch in flight: runs them on
    arrays at fixed addresses. `free` lets another micro-batch use the memory."""

    def __init__(self, planned: PlannedPass, binding: Binding, free: Callable[[], object]) -> None:
        recorded, self.calls, self.free = planned.recorded, planned.calls, free
        self._inputs = [
            (k, binding.array(array))
            for k, array in enumerate(recorded.inputs)
            if id(array) in planned.used
        ]
        self._keys = [(binding.array(key.words), key) for key in recorded.keys]
        self.outputs = [*map(binding.array, recorded.outputs)]
        self._seeds = [None if a is None else binding.array(a) for a in recorded.seeds]
        self.gradients = [*map(binding.array, recorded.gradients)]
        own: dict[Any, Any] = {
            ready: self._ready,
            join_moments: self._join,
            sum_over_ranks: self._sum,
            assign: partial(np.copyto, casting="unsafe"),
            progress: progress_hook.get(),  # of the executor, whose passes these are
        }
        calls = [*map(binding.call, recorded.calls)]
        calls = [Call(own.get(call.function, call.function), *call[1:]) for call in calls]
        self._of_forward, self._of_first, self._of_second = (
            [[call for call in calls[part] if call.function is not uses] for part in parts]
            for parts in planned.slices
        )
        self._adds, self._trained = recorded.adds, planned.trained

    def end(self) -> None:
        """Deletes the bound calls, which refer to this object and would keep its memory alive."""
        self._of_forward, self._of_first, self._of_second, self.free = [], [], [], list

    def _ready(self, p: Parameter) -> None:
        p.has_grad = True

    def _join(self, n: int, mean: Array, m2: Array, total: int, means: Array, m2s: Array) -> None:
        joined = self._stats.moments(Moments(n, mean, m2), lambda moments: None)
        assert joined.n == total, (joined.n, total)
        means[...], m2s[...] = joined.mean, joined.m2

    def _sum(self, sums: Array, total: Array) -> None:
        total[...] = self._stats.sum(sums)

    def forward(
        self, arrays: Sequence[Array], step: int, stats: BatchStats
    ) -> Generator[None, None, None]:
        self._stats = stats
        for k, memory in self._inputs:
            np.copyto(memory, arrays[k])
        for words, (seed, purpose, names, _) in self._keys:
            words[...] = keyed.key(seed, purpose, step, *names)
        yield from _in_turn(self._of_forward)

    def _first(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        for memory, seed in zip(self._seeds, seeds, strict=True):
            if memory is not None and seed is not None:
                np.copyto(memory, seed)
        yield from _in_turn(self._of_first)

    def _second(self) -> Generator[None, None, None]:
        if any(p.has_grad is not self._adds for p in self._trained):
            raise RuntimeError("another backward pass came before, or none, than was foreseen")
        yield from _in_turn(self._of_second)
        self.free()


def _in_turn(slices: Sequence[Sequence[Call]]) -> Generator[None, None, None]:
    """Runs recorded calls unit by unit; yields between two."""
    for k, calls in enumerate(slices):
        if k:
            yield
        for function, args, options, _ in calls:
            function(*args, **options)


class Memory:
    """The memory in which a stage runs its recorded passes, in turn: one buffer for temporary
    arrays, and for each micro-batch in flight one for what its backward pass needs."""

    def __init__(self) -> None:
        self._scratch, self._size = arena_of(0), 0
        self._free = list[PassMemory]()

    def acquire(self, planned: PlannedPass) -> BoundCalls:
        """Returns an object that runs the pass `planned` in memory that no micro-batch uses now."""
        if planned.kept.size > self._size or planned.scratch.size > len(self._scratch):
            self._size = max(self._size, planned.kept.size)
            self._scratch = arena_of(max(len(self._scratch), planned.scratch.size))
            self._drop_free()  # they have the memory that was too small
        held = (
            self._free.pop() if self._free else PassMemory(arena_of(self._size), self._scratch, {})
        )
        if planned not in held.replays:
            arenas = places_in(held.arena, planned.kept), places_in(held.scratch, planned.scratch)
            binding = Binding(planned.given, *arenas)
            held.replays[planned] = BoundCalls(planned, binding, partial(self._give_back, held))
        return held.replays[planned]

    @property
    def size(self) -> int:
        """The number of bytes that are allocated but that no micro-batch uses now."""
        return len(self._scratch) + sum(len(held.arena) for held in self._free)

    def clear(self) -> None:
        """Frees all memory that no micro-batch uses now; it is allocated again when needed."""
        self._scratch, self._size = arena_of(0), 0
        self._drop_free()

    def _drop_free(self) -> None:
        for held in self._free:
            held.drop()
        self._free.clear()

    def _give_back(self, held: "PassMemory") -> None:
        if held.scratch is self._scratch:
            self._free.append(held)
        else:
            held.drop()


class PassMemory(NamedTuple):
    """The memory of the recorded passes of one micro-batch in flight.

    arena     the arrays that the backward pass needs, as one buffer of bytes
    scratch   temporary arrays; passes of all micro-batches share this buffer
    replays   a dict: planned pass -> its replay, which is bound to addresses in this memory
    """

    arena: np.ndarray
    scratch: np.ndarray
    replays: dict[PlannedPass, BoundCalls]

    def drop(self) -> None:
        """Ends the replays in this memory, which is freed when no array is in use."""
        for replay in self.replays.values():
            replay.end()
        self.replays.clear()
