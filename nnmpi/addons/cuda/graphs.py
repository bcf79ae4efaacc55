"""Runs the passes of a stage on a GPU as two CUDA graphs: one of the forward pass, and one of the
backward pass.

capture   a pass runs by autograd on a stream that records its kernels instead of running them
replay    inputs, keys of random numbers and gradients of outputs are written into the memory that
          the kernels read; then one launch runs all kernels, and all gradients are ready at once

The arrays of a captured pass lie in a pool of their own, so that they stay where they are. A pass
in which the host reads values, copies them to the device or waits cannot be captured.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import numpy as np

from nnmpi.addons.cuda.capture import Capture, restored
from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import Call, logged_calls
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.tensor import Tensor
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats, Pass, ReplayStats, current_pass, variables_set
from nnmpi.nn.record import KeyedPass, RecordedKey
from nnmpi.parallel.step.ports import LossSink, Samples, Stage, pauses
from nnmpi.parallel.step.recordable_stage import MicroBatch
from nnmpi.parallel.step.recorded_pass import Forward, on_tape
from nnmpi.parallel.step.replay import Replay


def captured(
    on: Backend,
    stage: Stage,
    criteria: Sequence[Module],
    forward: Forward,
    micro: MicroBatch,
) -> "Graphs":
    """Returns the CUDA graphs of the forward and backward pass of a stage on a GPU. Raises
    NumbersReadError with the reason if the pass cannot be captured.

    criteria   the loss, if it is a module; else empty
    forward    runs the stage and its loss, given arrays
    micro      the micro-batch for which the pass is captured: its arrays give the shapes
    """
    kind, is_again = micro.state.kind, isinstance(micro.state.stats, ReplayStats)
    assert kind is not None
    is_whole = isinstance(stage.source, Samples) and isinstance(stage.sink, LossSink)
    if not is_whole or kind.in_flight > 1 or kind.halves or is_again:
        raise NumbersReadError("on a GPU, only passes of whole models on one rank are captured")
    if any(p.store is not None and p.store.is_shared for p in stage.module.parameters()):
        raise NumbersReadError("on a GPU, passes are not captured that write gradients to slots")
    parts, rest = (stage.module, *criteria), (micro.arrays, micro.current, kind.adds)
    return Graphs(on, forward, parts, *rest, stage.units)


class _CapturedPass(KeyedPass):
    """A Pass for capturing a CUDA graph: its random keys are in device memory (allocated by `new`),
    so that each replay can use those of its step."""

    new: Callable[..., Array]

    def key(self, seed: int, purpose: str, *names: str) -> keyed.Key:
        words = self.new((4,), np.uint32)
        self.keys.append(RecordedKey(seed, purpose, names, words))
        return keyed.Key(*(words[i, ...] for i in range(4)))


class _NoStats:
    """BatchStats for a pass that is captured as a CUDA graph. Its methods raise an error, since a
    graph cannot contain an exchange between ranks."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> NoReturn:
        raise NumbersReadError("a CUDA graph cannot contain BatchNorm over ranks")

    def sum(self, sums: Array) -> NoReturn:
        raise NumbersReadError("a CUDA graph cannot contain sums over ranks")


class Graphs(Replay):
    """A stage's passes as CUDA graphs, in memory of one micro-batch."""

    calls, gradients = 2, ()

    def __init__(
        self,
        on: Backend,
        forward: Forward,
        parts: Sequence[Module],
        arrays: Sequence[Array],
        current: Pass,
        adds: bool,
        units: Sequence[int],
    ) -> None:
        self._on, self._adds, self._units = on, adds, units
        self.free = lambda: None
        self._graphs = Capture(on)
        self._written = on.xp.cuda.MemoryPool()  # not for arrays that a graph has at other times
        self._keys, self._leaves = list[RecordedKey](), list[Any]()
        modules = [m for part in parts for m in part.modules()]
        parameters = [*dict.fromkeys(p for part in parts for p in part.parameters())]
        with restored(modules, parameters):
            for p in parameters:
                p.has_grad = adds and p.requires_grad
            self._inputs = [self._new(array.shape, array.dtype) for array in arrays]
            self._on_host = isinstance(arrays[-2], np.ndarray)  # labels
            stats = LOCAL if current.batch_stats is LOCAL else _NoStats()
            current = current._replace(samples=self._inputs[-1], batch_stats=stats)
            captured = _CapturedPass(*current)
            captured.keys, captured.new = self._keys, self._new
            try:
                self._capture(forward, captured)
            except (RuntimeError, MemoryError) as error:
                raise NumbersReadError(f"a CUDA graph cannot contain the pass: {error}") from None
        self._trained = frozenset(leaf for leaf in self._leaves if isinstance(leaf, Parameter))

    def _capture(self, forward: Forward, captured: _CapturedPass) -> None:
        root, graph = self._forward_pass(forward, captured, checks=self._on_host)
        memories = {id(memory) for memory in self._inputs}
        if any(id(check.args[0]) not in memories for check in self._checks):
            # labels that the pass computes are on the device, and not checked, as by the tape
            self._keys.clear()
            root, graph = self._forward_pass(forward, captured, checks=False)
        self.outputs, self._of_forward = [root.array], graph
        self._seed = self._new(root.array.shape, root.array.dtype)
        with self._graphs.graph() as backward, _as_current(captured):
            root.backward(self._seed, on_leaf=self._leaves.append)
        self._of_backward = backward[0]

    def _forward_pass(self, forward: Forward, captured: Pass, checks: bool) -> tuple[Tensor, Any]:
        """Captures a forward pass as a CUDA graph, with `captured` as its Pass. Returns (its
        result, the graph). With `checks`, calls that check labels are left out of the graph, and
        made on the host before each launch."""
        log = logged_calls() if checks else nullcontext(list[Call]())
        with self._graphs.graph() as graphs, _as_current(captured), log as calls:
            _, root = forward(self._inputs)
        self._checks = [call for call in calls if call.is_check]
        return root, graphs[0]

    def _new(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Returns device memory that is written before each launch."""
        with self._on.xp.cuda.using_allocator(self._written.malloc):
            return self._on.xp.empty(shape, dtype)

    def forward(
        self, arrays: Sequence[Array], step: int, stats: BatchStats
    ) -> Generator[None, None, None]:
        """Runs the forward pass on the input `arrays`, with the random numbers of this step. A
        generator that yields between units, while parameters may still be gathered, and launches
        the whole graph after the last yield. `stats` is not used: a graph exchanges no batch
        statistics."""
        given = {id(memory): array for memory, array in zip(self._inputs, arrays, strict=True)}
        for check in self._checks:
            check.function(*(given.get(id(argument), argument) for argument in check.args))
        yield from pauses(self._units)
        for memory, array in zip(self._inputs, arrays, strict=True):
            _write(memory, array)
        for seed, purpose, names, words in self._keys:
            _write(words, np.array(keyed.key(seed, purpose, step, *names), np.uint32))
        self._of_forward.launch()

    def _first(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Launches the graph of the whole backward pass; yields nothing."""
        if any(p.has_grad is not self._adds for p in self._trained):
            raise RuntimeError("another backward pass came before, or none, than was foreseen")
        (seed,) = seeds
        _write(self._seed, seed)
        self._of_backward.launch()
        for leaf in self._leaves:
            if leaf in self._trained:
                leaf.has_grad = True
        yield from ()

    def _second(self) -> Generator[None, None, None]:
        """Only yields between units: `_first` has launched the whole pass."""
        return pauses(self._units)


def _write(memory: Array, array: Array) -> None:
    if isinstance(array, np.ndarray):
        memory.set(array)
    else:
        memory[...] = array


@contextmanager
def _as_current(current: Pass) -> Iterator[None]:
    """A context in which a pass is captured, with `current` as its Pass."""
    with variables_set((current_pass, current)), on_tape(lambda: None):
        yield
