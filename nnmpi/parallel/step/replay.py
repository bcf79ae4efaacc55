"""Replays recorded passes of a stage: lists of kernels in place of module and tape.

key       shapes of the inputs, mode and attributes of the modules, which gradients are there
PassList  recorded when a key occurs for the first time, at two steps, which must agree
Replay    the list on memory: one for each micro-batch in flight, used again and again
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import Call, UnlikeError
from nnmpi.arrays.meta.memory_plan import Binding, Lifetime, lifetimes, plan
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.data.inputs import like, parts
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.pass_list import PassList, ready, record, same_calls
from nnmpi.nn.passes import LOCAL, Pass, ReplayStats
from nnmpi.nn.single_store import Store
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.step.ports import LossSink, PassState, Samples, Stage, call, run_stage

MOST_LISTS = 16
"""The number of lists of a stage at which it is given up: each pass seems to be another one."""


class Replay:
    """A recorded pass on memory of its own."""

    requires_grad = True

    def __init__(self, passes: PassList, free: list["Replay"]) -> None:
        alive = lifetimes(passes.calls, [passes.loss])
        words = [key.words for key in passes.keys]
        for array in (*passes.inputs, *words):  # written before the first call
            alive[id(array)] = Lifetime(
                array, 0, alive[id(array)].last if id(array) in alive else 0
            )
        last = alive[id(passes.seed)].last if id(passes.seed) in alive else passes.backward
        alive[id(passes.seed)] = Lifetime(passes.seed, passes.backward, last)
        elsewhere = {id(stand_in) for stand_in, _ in passes.given}
        memory = plan(a for key, a in alive.items() if key not in elsewhere)
        binding = Binding(memory, passes.given)
        self._inputs = [*map(binding.array, passes.inputs)]
        self._keys = [(binding.array(key.words), key) for key in passes.keys]
        self._seed, self._loss = binding.array(passes.seed), binding.array(passes.loss)
        calls = [self._with_ready(binding.call(call)) for call in passes.calls]
        self._forward, self._backward = calls[: passes.backward], calls[passes.backward :]
        self._on_leaf: Callable[[Any], None] | None = None
        self._free = free

    def _with_ready(self, call: Call) -> tuple[Any, ...]:
        function = self._ready if call.function is ready else call.function
        return function, call.args, call.options

    def _ready(self, p: Parameter) -> None:
        p.has_grad = True
        if self._on_leaf is not None:
            self._on_leaf(p)

    def forward(self, arrays: Sequence[Array], step: int) -> Array:
        """Runs the forward pass on these inputs, as in this step; returns the loss."""
        for memory, array in zip(self._inputs, arrays, strict=True):
            np.copyto(memory, array)
        for words, (seed, purpose, names, _) in self._keys:
            words[...] = keyed.key(seed, purpose, step, *names)
        for function, args, options in self._forward:
            function(*args, **options)
        self.data = self._loss.copy()  # the memory serves other micro-batches
        return self.data

    def backward(self, seed: Array, on_leaf: Callable[[Any], None] | None = None) -> None:
        """Runs the backward pass, from the gradient of the loss."""
        np.copyto(self._seed, seed)
        self._on_leaf = on_leaf
        for function, args, options in self._backward:
            function(*args, **options)
        self._free.append(self)


class ComparedRoot:
    """The root of a pass that runs by the tape, beside a replay whose gradients must have the same
    bits."""

    def __init__(self, root: Tensor, replay: Replay, parameters: Sequence[Parameter]) -> None:
        self.root, self._replay, self._parameters = root, replay, parameters
        self.data, self.requires_grad = root.data, root.requires_grad
        self.differing: Callable[[bool], object]

    def backward(self, seed: Array, on_leaf: Callable[[Any], None] | None = None) -> None:
        """Runs the backward pass of the replay, then that of the tape."""
        before = [_copied(p) for p in self._parameters]
        self._replay.backward(seed)
        replayed = {p: _copied(p) for p in self._parameters}
        for p, gradient in zip(self._parameters, before, strict=True):
            p.grad = gradient
        differs = False

        def compared(leaf: Any) -> None:
            nonlocal differs
            differs |= not same_bits(_copied(leaf), replayed[leaf])
            if on_leaf is not None:
                on_leaf(leaf)

        self.root.backward(seed, on_leaf=compared)
        self.differing(differs)


def _copied(p: Parameter) -> Array | None:
    return p.grad.copy() if p.grad is not None else None


def same_bits(a: Array | None, b: Array | None) -> bool:
    """True if two arrays have the same bits, or both are None."""
    if a is None or b is None:
        return a is b
    return bool(np.asarray(a).tobytes() == np.asarray(b).tobytes())


def _has_fixed_memory(store: Store | None) -> bool:
    """True if parameters and gradients stay where they are."""
    kind: Any = type(store)
    return isinstance(store, FlatStore) and (kind.value, kind.grad_memory) == (
        FlatStore.value,
        FlatStore.grad_memory,
    )


class StageLists:
    """The lists of a stage that computes the loss from samples, each compared with the tape before
    it is used.

    always_compared   every pass runs by the tape too, and both must have the same bits
    replays           the number of passes that were replayed
    reason            why passes run by the tape; None if they are replayed
    """

    def __init__(self, stage: Stage, always_compared: bool) -> None:
        self._stage, self._always_compared = stage, always_compared
        self._modules = [*stage.module.modules()]
        self._parameters = [*stage.module.parameters()]
        self._lists = dict[Any, PassList | None]()
        self._free, self._compared = dict[Any, list[Replay]](), set[Any]()
        self.reason, self.replays = self._refusal(), 0

    def _refusal(self) -> str | None:
        source, sink = self._stage.source, self._stage.sink
        if not isinstance(source, Samples) or not isinstance(sink, LossSink):
            return "stages of a pipeline are not replayed yet"
        if not all(_has_fixed_memory(p.store) for p in self._parameters):
            return "the store moves parameters or gradients in memory"
        return None

    def root(self, state: PassState, micro: int, current: Pass) -> Any:
        """The root of the pass of a micro-batch."""
        if self.reason or isinstance(state.stats, ReplayStats) or not recording.get():
            return run_stage(self._stage, state, micro, current)
        sink = self._stage.sink
        assert isinstance(sink, LossSink)
        tensors = parts(state.input)
        arrays = [*(t.data for _, t in tensors), sink.labels(micro), current.samples]
        key = (
            *((a.shape, a.dtype) for a in arrays),
            *map(_NEEDS, self._parameters),
            *map(_STATE, self._modules),
            *map(id, self._buffers()),
        )
        if key not in self._lists:
            self._lists[key] = self._recorded(state, arrays, current)
        if (passes := self._lists[key]) is None:
            return run_stage(self._stage, state, micro, current)
        free = self._free.setdefault(key, [])
        replay = free.pop() if free else Replay(passes, free)
        if self._always_compared or key not in self._compared:
            return self._beside_tape(replay, key, state, micro, current, arrays)
        try:
            replay.forward(arrays, current.step)
        except UnlikeError:
            free.append(replay)
            return run_stage(self._stage, state, micro, current)
        self.replays += 1
        return replay

    def _buffers(self) -> list[Array]:
        arrays = (getattr(m, name) for m in self._modules for name in m._buffers)
        return [array for array in arrays if array is not None]

    def _recorded(
        self, state: PassState, arrays: Sequence[Array], current: Pass
    ) -> PassList | None:
        """The list of a pass with these inputs; None if it cannot be recorded."""
        sink = self._stage.sink
        assert isinstance(sink, LossSink)
        if len(self._lists) == MOST_LISTS:
            self.reason = f"each of {MOST_LISTS} passes was another one"
            return None

        def loss_of(module: Module, inputs: Sequence[Any]) -> Tensor:
            *given, labels = inputs
            return sink.loss_of(call(module, like(state.input, [*map(Tensor, given)])), labels)

        *inputs, samples = arrays
        module = self._stage.module
        try:
            first, second = (
                record(module, loss_of, inputs, samples, current.batch, state.stats is LOCAL)
                for _ in range(2)
            )
        except NumbersReadError as e:
            self.reason = str(e)
            return None
        if not same_calls(first, second):
            self.reason = "two recordings of a pass differ"
            return None
        return first

    def _beside_tape(
        self,
        replay: Replay,
        key: Any,
        state: PassState,
        micro: int,
        current: Pass,
        arrays: Sequence[Array],
    ) -> Any:
        """The root of a pass that runs by the tape and by a replay, which are compared."""
        buffers = self._buffers()
        before = [array.copy() for array in buffers]
        try:
            loss = replay.forward(arrays, current.step)
        except UnlikeError:
            return run_stage(self._stage, state, micro, current)
        replayed = [array.copy() for array in buffers]
        for array, old in zip(buffers, before, strict=True):
            array[...] = old
        root = run_stage(self._stage, state, micro, current)
        same = all(map(same_bits, [root.data, *buffers], [loss, *replayed]))
        compared = ComparedRoot(root, replay, self._parameters)

        def ended(differs: bool) -> None:
            if same and not differs:
                self._compared.add(key)
            else:
                self._lists[key] = None
                self.reason = "a recorded pass has other bits than the tape"

        compared.differing = ended
        return compared


_NEEDS = attrgetter("has_grad", "requires_grad", "store")
_STATE = attrgetter("_changes", "training")


class ReplayedStages:
    """Runs the stages of a rank from recorded passes where it can, and else by module and tape."""

    def __init__(self, always_compared: bool) -> None:
        self._always_compared = always_compared
        self.lists = dict[int, StageLists]()

    def __call__(self, stage: Stage, state: PassState, micro: int, current: Pass) -> Any:
        """The root of the pass of a micro-batch."""
        lists = self.lists.get(id(stage.module))
        if lists is None:
            lists = self.lists[id(stage.module)] = StageLists(stage, self._always_compared)
        return lists.root(state, micro, current)
