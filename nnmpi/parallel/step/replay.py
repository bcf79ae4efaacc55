"""Replay: runs the array operations that were recorded in an earlier forward and backward pass, in
memory that was planned for them, without calling modules or autograd again."""

from collections.abc import Callable, Collection, Generator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import progress_hook
from nnmpi.arrays.meta.log import Call, assign
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
from nnmpi.data.inputs import parts
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import BatchStats
from nnmpi.nn.record import PassList, join_moments, progress, ready, sum_over_ranks, uses
from nnmpi.parallel.step.buffers import Received
from nnmpi.parallel.step.ports import JoinedOutputs, PassState


class NotedPass(Protocol):
    """A forward and backward pass that was recorded when it ran once, and can run again for other
    micro-batches: a `PlannedPass` on a CPU, CUDA graphs on a GPU.

    calls     the number of recorded function calls (or of graphs) that run it
    trained   the parameters whose gradients the backward pass computes
    """

    calls: int
    trained: frozenset[Parameter]

    def replay(self, memory: "Memory") -> "RunnablePass":
        """Returns an object that runs this recorded pass for one micro-batch, with its arrays in
        `memory` or, for CUDA graphs, in memory of the graphs."""


class PlannedPass:
    """A recorded forward and backward pass (a list of function calls on arrays), with a plan that
    gives each array a place in memory. The pass has three parts: forward, and the two halves of
    backward.

    kept        the plan for arrays that live longer than one part; each micro-batch in flight has
                such memory of its own
    scratch     the plan for arrays that live within one part

    in_flight   how many micro-batches are between their forward and backward passes at the same
                time
    units       the parameters of each unit (a part of the stage, usually a layer, between which a
                pass can stop)
    absent      the parameters that may not be in memory while each unit runs, since with ZeRO 3
                parameters take turns there (see `StageUnits`)
    unrepeated  those of `absent` that a function which runs again in the backward pass of each unit
                may not read either
    """

    def __init__(
        self,
        passes: PassList,
        in_flight: int = 1,
        units: Sequence[Collection[Parameter]] = ((),),
        absent: Sequence[Collection[Parameter]] = ((),),
        unrepeated: Sequence[Collection[Parameter]] = ((),),
    ) -> None:
        self.passes, calls = passes, passes.calls
        written = *passes.inputs, *(key.words for key in passes.keys)  # before the first call
        others = [(a, 0) for a in written]
        others += [(a, passes.backward) for a in (*passes.outputs, *passes.seeds) if a is not None]
        others += [(a, max(passes.second - 1, passes.backward)) for a in passes.gradients]
        outputs = [(a, 0) for a in passes.outputs]  # one may be an input that no call uses
        self.used, self.given = {*lifetimes(calls, outputs)}, places_of(passes.given)
        self.trained = frozenset(call.args[0] for call in calls if call.function is ready)
        alive = [a for key, a in lifetimes(calls, others).items() if key not in self.given]
        starts = 0, passes.backward, passes.second
        self.kept, self.scratch = plan_in_parts(alive, starts, in_flight)
        self.calls = sum(call.function is not uses for call in calls)
        self.slices = _slices(passes, units, absent, unrepeated)

    def replay(self, memory: "Memory") -> "Replay":
        """Returns an object that runs this pass in memory that no micro-batch uses now; the memory
        is allocated if needed."""
        return memory.acquire(self)


class Memory:
    """The memory in which a pipeline stage runs its recorded passes: one buffer for temporary
    arrays, and for each micro-batch in flight a buffer for the arrays that its backward pass needs.
    Different recorded passes use it in turn."""

    def __init__(self) -> None:
        self._scratch, self._size = arena_of(0), 0
        self._free = list[Slot]()

    def acquire(self, planned: PlannedPass) -> "Replay":
        """Returns an object that runs the pass `planned` in memory that no micro-batch uses now;
        the memory is allocated if needed."""
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
        """The number of bytes that are allocated but that no micro-batch uses now."""
        return len(self._scratch) + sum(len(slot.arena) for slot in self._free)

    def clear(self) -> None:
        """Frees all memory that no micro-batch uses now; it is allocated again when needed."""
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
    """The memory that the recorded passes of one micro-batch in flight use.

    arena     the arrays that the backward pass needs, as one buffer of bytes
    scratch   temporary arrays; all slots share this buffer
    replays   a dict: planned pass -> its replay, which is bound to addresses in this memory
    """

    arena: np.ndarray
    scratch: np.ndarray
    replays: dict[PlannedPass, "Replay"]

    def drop(self) -> None:
        """Ends the replays that use this memory and removes their references to it. It is freed
        when no array in it is in use any more."""
        for replay in self.replays.values():
            replay.end()
        self.replays.clear()


class RunnablePass(Protocol):
    """A recorded forward and backward pass that can run without modules and autograd: a `Replay` on
    the CPU, or what a device has captured."""

    @property
    def outputs(self) -> Sequence[Array]:
        """The output arrays of the forward pass."""

    @property
    def gradients(self) -> Sequence[Array]:
        """The gradients of those inputs that another pipeline stage has sent."""

    def free(self) -> object:
        """Declares that the micro-batch is done, so that another one may use the memory of this
        pass."""

    def forward(
        self, arrays: Sequence[Array], step: int, stats: BatchStats
    ) -> Generator[None, None, None]:
        """Runs the forward pass on `arrays`, with the random numbers of this step; `stats` sums
        BatchNorm statistics over ranks. The generator yields between units (usually layers), so
        that its caller can communicate there."""

    def first_half(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Starts the backward pass, given the gradients of the outputs (`seeds`). If the pass was
        recorded in two halves, this runs the first one, the gradients of the inputs; otherwise
        everything is left to `second_half`. Yields between units (usually layers)."""

    def second_half(self) -> Generator[None, None, None]:
        """Runs all of the backward pass that `first_half` has not run, and then lets another
        micro-batch use the memory. Yields between units (usually layers)."""


class Replay:
    """A recorded pass, bound to the memory of one micro-batch in flight: runs the recorded calls on
    arrays at fixed addresses. `free` lets another micro-batch use the memory."""

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
            assign: partial(np.copyto, casting="unsafe"),
            progress: progress_hook.get(),  # of the executor, whose passes these are
        }
        calls = [*map(binding.call, passes.calls)]
        calls = [Call(own.get(call.function, call.function), *call[1:]) for call in calls]
        self._forward, self._first, self._second = (
            [[call for call in calls[part] if call.function is not uses] for part in parts]
            for parts in planned.slices
        )
        self._adds, self._trained = passes.adds, planned.trained

    def end(self) -> None:
        """Deletes the bound calls. They refer to this object and to its memory, which they would
        keep alive."""
        self._forward, self._first, self._second, self.free = [], [], [], list

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
        """Runs the forward pass on `arrays`, with the random numbers of this step; `stats` sums
        BatchNorm statistics over ranks. The generator yields between units (usually layers)."""
        self._stats = stats
        for k, memory in self._inputs:
            np.copyto(memory, arrays[k])
        for words, (seed, purpose, names, _) in self._keys:
            words[...] = keyed.key(seed, purpose, step, *names)
        yield from _in_turn(self._forward)

    def first_half(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Starts the backward pass, given the gradients of the outputs (`seeds`). If the pass was
        recorded in two halves, this runs the first one, the gradients of the inputs; otherwise it
        only stores the seeds for `second_half`. Yields between units (usually layers)."""
        for memory, seed in zip(self._seeds, seeds, strict=True):
            if memory is not None and seed is not None:
                np.copyto(memory, seed)
        yield from _in_turn(self._first)

    def second_half(self) -> Generator[None, None, None]:
        """Runs all of the backward pass that `first_half` has not run, and then lets another
        micro-batch use the memory. Yields between units (usually layers)."""
        if any(p.has_grad is not self._adds for p in self._trained):
            raise RuntimeError("another backward pass came before, or none, than was foreseen")
        yield from _in_turn(self._second)
        self.free()


def _in_turn(slices: Sequence[Sequence[Call]]) -> Generator[None, None, None]:
    """Runs recorded calls slice by slice, where a slice has the calls of one unit (part of the
    stage, usually a layer); yields between two slices."""
    for k, calls in enumerate(slices):
        if k:
            yield
        for function, args, options, _ in calls:
            function(*args, **options)


class Slices(NamedTuple):
    """For each unit (a part of a stage, usually a layer), the range of the recorded calls that
    belong to it: in the forward pass, and in the two halves of the backward pass, where the last
    unit comes first. If the backward pass has no halves, `first` is empty and `second` has all of
    it."""

    forward: Sequence[slice]
    first: Sequence[slice]
    second: Sequence[slice]


def _slices(
    passes: PassList,
    of_units: Sequence[Collection[Parameter]],
    absent: Sequence[Collection[Parameter]],
    unrepeated: Sequence[Collection[Parameter]],
) -> Slices:
    """Divides the calls of a recorded pass (`passes`) among the units of the stage (its parts,
    usually layers).

    In the forward pass, a unit ends before a parameter of a later unit is used; in the backward
    pass, where all gradients of its parameters are final: of_units[u] are the parameters of unit u.
    With ZeRO 3 parameters take turns in memory, and absent[u] are those that may not be there while
    unit u runs: then unit u ends before the first use of one of these. For a use in a function that
    runs again in the backward pass, unrepeated[u] takes the place of absent[u].
    """
    begin = passes.second if passes.halves else passes.backward
    forward, second = range(passes.backward), range(begin, len(passes.calls))
    first, downwards = range(passes.backward, begin), (absent[::-1], unrepeated[::-1])
    if any(absent):
        later, ends = absent, _before(passes, second, *downwards)
    else:
        later = [frozenset[Parameter]().union(*of_units[u:]) for u in range(1, len(of_units) + 1)]
        ends = _behind(passes, second, of_units)
    return Slices(
        _cut(forward, _before(passes, forward, later, later)),
        _cut(first, _before(passes, first, *downwards) if first else ()),
        _cut(second, ends),
    )


def _before(
    passes: PassList,
    calls: range,
    others: Sequence[Collection[Parameter]],
    unrepeated: Sequence[Collection[Parameter]],
) -> Sequence[int]:
    """Divides the calls of a forward pass, or of all or half of a backward pass, among the units of
    a stage (parts, usually layers). Returns, for each unit except the first, the index in
    `passes.calls` of the call at which it begins. `calls` is the range of indices of the pass.

    others[k] has parameters that unit k, counted in the order of this pass, never uses: the first
    use of one of them ends unit k and begins unit k + 1. If no call uses any of them, unit k has
    all the remaining calls, and the later units have none. For a use by a function that runs again,
    unrepeated[k] takes the place of others[k].
    """
    begins, left = list[int](), [*zip(others[:-1], unrepeated[:-1], strict=True)]
    for k in calls:
        call = passes.calls[k]
        while left and call.function is uses and call.args[0] in left[0][call.args[1]]:
            begins.append(k)
            del left[0]
    return begins + [calls.stop] * len(left)


def _behind(
    passes: PassList, calls: range, of_units: Sequence[Collection[Parameter]]
) -> Sequence[int]:
    """Divides the calls of a backward pass among the units of a stage (parts, usually layers): a
    unit ends after the call that makes the last gradient of its parameters final. Returns, for each
    unit except the first that runs, the index in `passes.calls` of the call at which it begins.

    `calls` is the range of indices of the backward pass; of_units[u] are the parameters of unit u,
    in the order of the forward pass.
    """
    final = {passes.calls[k].args[0]: k + 1 for k in calls if passes.calls[k].function is ready}
    ends = ([final.get(p, 0) for p in inside] for inside in of_units[:0:-1])
    return [*accumulate((max([calls.start, *of_unit]) for of_unit in ends), max)]


def _cut(calls: range, places: Sequence[int]) -> list[slice]:
    return [slice(*pair) for pair in pairwise([calls.start, *places, calls.stop])]


class ReplayedPass:
    """The pass of one micro-batch through a stage, whose forward pass was replayed from a
    recording; its backward pass is replayed too.

    received   the inputs that come from another stage and need a gradient
    """

    def __init__(self, root: Tensor, replay: RunnablePass, received: Sequence[Received]) -> None:
        self.root, self._replay, self._received = root, replay, received

    def backward(self, seed: Array) -> Generator[None, None, None]:
        """Runs the whole backward pass, given the gradient `seed` of the output. Yields between
        units (usually layers)."""
        yield from self._replay.first_half(seeds_of(self.root, seed))
        yield from self._replay.second_half()
        self._pass_on()

    def first_half(self, seed: Array) -> Generator[None, None, None]:
        """Computes the gradients of the inputs that another stage has sent, given the gradient
        `seed` of the output. Yields between units (usually layers)."""
        yield from self._replay.first_half(seeds_of(self.root, seed))
        self._pass_on()

    def second_half(self) -> Generator[None, None, None]:
        """Computes the gradients of the parameters, after `first_half`. Yields between units
        (usually layers)."""
        return self._replay.second_half()

    def _pass_on(self) -> None:
        for x, gradient in zip(self._received, self._replay.gradients, strict=True):
            x.set_gradient(gradient)


def received(state: PassState) -> list[Received]:
    """Returns the inputs of a stage's pass that come from another stage and need a gradient."""
    return [t for _, t in parts(state.input) if isinstance(t, Received)]


def seeds_of(root: Tensor, seed: Array) -> Sequence[Any]:
    """Returns the gradients from which a backward pass starts, one for each output: `seed`, the
    gradient of the loss; or, if `root` joins several outputs of a stage, the gradients that were
    stored in it."""
    return root.gradients if isinstance(root, JoinedOutputs) else [seed]
