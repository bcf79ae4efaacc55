"""Runs the passes of a stage on a GPU as two CUDA graphs: one of the forward pass, and one of the
backward pass, or of each half of it.

capture   a pass runs by autograd on a stream that records its kernels instead of running them
replay    inputs, keys of random numbers and gradients of outputs are written into the memory that
          the kernels read; then one launch runs all kernels, and all gradients are ready at once
whole     if a step has one micro-batch, these graphs and the tail of the step (deferred_steps.py)
          are one graph, which is launched in place of the forward pass. Sums over ranks are a part
          of it: they begin between the graphs of units, into which the backward pass is divided

The arrays of a captured pass lie in a pool of their own, so that they stay where they are. A pass
in which the host reads values, copies them to the device or waits cannot be captured.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np

from nnmpi.addons.cuda.capture import Capture, Graph, restored
from nnmpi.addons.cuda.staging import Staging
from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import Call, logged_calls
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.tape import begun
from nnmpi.autograd.tensor import Tensor
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats, Pass, ReplayStats, current_pass, variables_set
from nnmpi.nn.record import KeyedPass
from nnmpi.parallel.step.ports import LossSink
from nnmpi.parallel.step.recordable_stage import MicroBatch
from nnmpi.parallel.step.recorded_pass import Forward, on_tape, taken
from nnmpi.parallel.step.replay import Replay
from nnmpi.parallel.step.stage import ENDED, Stage, outputs_of, pauses, seed_of
from nnmpi.schedules.lists.step_list import BackwardKind


def captured(
    on: Backend,
    stage: Stage,
    criteria: Sequence[Module],
    forward: Forward,
    micro: MicroBatch,
) -> "Slots":
    """Returns the CUDA graphs of the forward and backward pass of a stage on a GPU, for each
    micro-batch that is in flight at a time. Raises NumbersReadError with the reason if the pass
    cannot be captured.

    criteria   the loss, if it is a module; else empty
    forward    runs the stage and its loss, given arrays
    micro      the micro-batch for which the pass is captured: its arrays give the shapes
    """
    kind = micro.state.kind
    assert kind is not None
    if isinstance(micro.state.stats, ReplayStats):
        raise NumbersReadError("on a GPU, passes are not captured that run forward again")
    if any(p.store is not None and p.store.is_shared for p in stage.module.parameters()):
        raise NumbersReadError("on a GPU, passes are not captured that write gradients to slots")
    rest = (stage.module, *criteria), micro.arrays, micro.current, kind, stage
    # of those in flight, only the first of a step adds to nothing
    return Slots([Graphs(on, forward, *rest) for _ in range(kind.in_flight if kind.adds else 1)])


class Slots:
    """Graphs of a pass, each in memory of its own, for the micro-batches that are in flight."""

    def __init__(self, each: "Sequence[Graphs]") -> None:
        self._each, self._free, self.calls = each, [*each], each[0].calls
        for graphs in each:
            graphs.free = partial(self._free.append, graphs)

    def acquire(self) -> "Graphs":
        """Returns graphs that no micro-batch uses now."""
        if not self._free:  # an interrupted step has given none back
            self._free += self._each
        return self._free.pop()


class _CapturedPass(KeyedPass):
    """A Pass for capturing a CUDA graph, which is launched in steps of any number."""

    @property
    def step(self) -> NoReturn:
        refuse("the number of the step")


class _NoStats:
    """BatchStats for a pass that is captured as a CUDA graph. Its methods raise an error, since a
    graph cannot contain an exchange between ranks."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> NoReturn:
        raise NumbersReadError("a CUDA graph cannot contain BatchNorm over ranks")

    def sum(self, sums: Array) -> NoReturn:
        raise NumbersReadError("a CUDA graph cannot contain sums over ranks")


class Graphs(Replay):
    """A stage's passes as CUDA graphs, in memory of one micro-batch."""

    gradients: Sequence[Array] = ()

    def __init__(
        self,
        on: Backend,
        forward: Forward,
        parts: Sequence[Module],
        arrays: Sequence[Array],
        current: Pass,
        kind: BackwardKind,
        stage: Stage,
    ) -> None:
        self._kind, self._stage, self._sink = kind, stage, stage.sink
        self._tail: Any = self._sink.tail if isinstance(self._sink, LossSink) else None
        self._wholes, self._number = dict[tuple[int, ...], Graph | None](), 0
        self._is_launched = self._has_run = False
        self._halves: Sequence[_Half] = ()
        self._graphs, self._staging = Capture(on), Staging(on.xp, arrays)
        self._inputs, inputs = zip(*self._staging.arguments, strict=True)
        self._written_seeds: Sequence[Array | None] = ()
        modules = [m for part in parts for m in part.modules()]
        parameters = [*dict.fromkeys(p for part in parts for p in part.parameters())]
        with restored(modules, parameters):
            for p in parameters:
                p.has_grad = kind.adds and p.requires_grad
            stats = LOCAL if current.batch_stats is LOCAL else _NoStats()
            captured = _CapturedPass(*current._replace(samples=inputs[-1], batch_stats=stats))
            captured.keys, vars(captured)["stand_in"] = [], self._staging.words
            try:
                checks = isinstance(self._sink, LossSink) and isinstance(arrays[-2], np.ndarray)
                self._capture(forward, inputs, captured, checks)
            except (RuntimeError, MemoryError) as error:
                raise NumbersReadError(f"a CUDA graph cannot contain the pass: {error}") from None
        self._keys = [(self._staging.on_host(key.words), key) for key in captured.keys]

    def _capture(
        self, forward: Forward, inputs: Sequence[Array], captured: _CapturedPass, checks: bool
    ) -> None:
        received, root, graph, of_labels = self._forward_pass(forward, inputs, captured, checks)
        places = {id(array): k for k, array in enumerate(inputs)}
        if any(id(check.args[0]) not in places for check in of_labels):
            # labels that the pass computes are on the device, and not checked, as by the tape
            captured.keys.clear()
            again = self._forward_pass(forward, inputs, captured, checks=False)
            received, root, graph, of_labels = again
        self._checks = [
            check._replace(args=[self._inputs[places[id(check.args[0])]], *check.args[1:]])
            for check in of_labels
        ]
        if not root._requires_grad:
            raise NumbersReadError("a pass without gradients")
        outputs, self._of_forward = outputs_of(root), graph
        self.outputs = [t.array for t in outputs]
        self._seeds = [self._staging.like(t.array) if t._requires_grad else None for t in outputs]
        if self._tail is not None and self._tail.sums:
            self._halves = self._in_units(root, captured), _Half([], ())
        else:
            self._halves = self._in_halves(root, received, captured)
        self.calls = 1 + sum(len(half.graphs) for half in self._halves)

    def _in_halves(
        self, root: Tensor, received: Sequence[Tensor], captured: Pass
    ) -> "Sequence[_Half]":
        """Captures a backward pass: the first half, or all of it, and the second half."""
        first, second, of_second = list[Any](), list[Any](), list[Graph]()
        with self._graphs.graph() as of_first, _as_current(captured):
            until = received if self._kind.halves and received else None
            rest = root.backward(seed_of(root, self._seeds), on_leaf=first.append, until=until)
            self.gradients = taken(received)
        if rest is not None:
            with self._graphs.graph() as of_second, _as_current(captured):
                rest.finish(second.append)
        return _Half(of_first, first), _Half(of_second, second)

    def _in_units(self, root: Tensor, captured: Pass) -> "_Half":
        """Captures a backward pass as a graph for each unit, the last one first."""
        rest, graphs, is_over = begun(root, seed_of(root, self._seeds)), list[Graph](), False
        leaves, units = rest.leaves(), rest.in_parts(self._stage.of_units[::-1])
        while not is_over:
            with self._graphs.graph() as of_unit, _as_current(captured):
                is_over = next(units, ENDED) is ENDED
            graphs += of_unit
        return _Half(graphs, leaves)

    def _forward_pass(
        self, forward: Forward, inputs: Sequence[Array], captured: Pass, checks: bool
    ) -> tuple[Sequence[Tensor], Tensor, Graph, Sequence[Call]]:
        """Captures a forward pass as a CUDA graph, with `captured` as its Pass. Returns (inputs
        whose gradients are sent back, its result, the graph, the calls that check labels). With
        `checks`, such calls are left out of the graph, and made on the host before each launch."""
        log = logged_calls() if checks else nullcontext(list[Call]())
        with self._graphs.graph() as graphs, _as_current(captured), log as calls:
            received, root = forward(inputs)
        return received, root, graphs[0], [call for call in calls if call.is_check]

    def forward(
        self, arrays: Sequence[Array], step: int, stats: BatchStats
    ) -> Generator[None, None, None]:
        """Runs the forward pass on the input `arrays`, with the random numbers of this step. A
        generator that yields between units, while parameters may still be gathered, and launches
        the whole graph after the last yield. `stats` is not used: a graph exchanges no batch
        statistics.

        Where the whole step is one graph, this runs the backward pass and the tail of the step too.
        """
        yield from self._written(arrays, step)
        step_graph = None if self._tail is None else self._whole()
        if step_graph is None:
            self._of_forward.launch()
            return
        self._write_seeds(self._sink.seeds(0, self.outputs))
        step_graph.launch()
        self._tail.is_launched = self._is_launched = True

    def _written(self, arrays: Sequence[Array], step: int) -> Generator[None, None, None]:
        """Writes the inputs and the keys of this step; yields between units before."""
        for memory, array in zip(self._inputs, arrays, strict=True):
            memory[...] = array
        for check in self._checks:
            check.function(*check.args)
        yield from pauses(self._stage.units)
        for words, (seed, purpose, names, _) in self._keys:
            words[...] = keyed.key(seed, purpose, step, *names)
        self._staging.copy()

    def _whole(self) -> Graph | None:
        """Returns the graph of the whole step, or None. All ranks capture it when they first have
        graphs of the parts: not for the first pass, beside which autograd computes the same."""
        tail = self._tail
        if self._has_run and not self._number and tail.fits(self._halves[0].trained):
            self._number = next(tail.graphs)
        numbers = tail.agreed(self._number)
        if numbers and numbers not in self._wholes:
            graph = self._captured_whole()
            self._wholes[numbers] = graph if tail.is_captured(graph is not None) else None
        return self._wholes.get(numbers)

    def _captured_whole(self) -> Graph | None:
        """Captures a whole step; returns None if it cannot be captured."""
        self._graphs.libraries |= self._tail.libraries
        with suppress(RuntimeError):
            with self._graphs.graph() as graphs:
                self._launch_whole(self._tail)
            return graphs[0]
        return None

    def _launch_whole(self, tail: Any) -> None:
        """Launches all parts of a whole step. Sums over ranks begin as soon as gradients are
        final."""
        self._of_forward.launch()
        tail.begin(self.outputs[0])
        final, units = set[Parameter](), self._stage.of_units[::-1]
        for graph, unit in zip(self._halves[0].graphs, units, strict=False):
            graph.launch()
            final |= unit
            tail.sum_final(final)
        tail.compute(self.outputs[0])

    def _write_seeds(self, seeds: Sequence[Array | None]) -> None:
        if seeds is not self._written_seeds:
            for memory, seed in zip(self._seeds, seeds, strict=True):
                if memory is not None and seed is not None:
                    memory[...] = seed
            self._written_seeds = seeds  # a list is not changed

    def _first(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Launches the graph of the whole backward pass or of its first half, unless it is a part
        of a graph that was launched; yields nothing."""
        if not self._is_launched:
            self._write_seeds(seeds)
        self._run(0)
        self._is_launched, self._has_run = False, True
        yield from ()

    def _second(self) -> Generator[None, None, None]:
        """Launches the graph of the second half, if there are halves; yields between units."""
        self._run(1)
        yield from pauses(self._stage.units)
        self.free()

    def _run(self, k: int) -> None:
        """Runs a half of the backward pass."""
        half = self._halves[k]
        if any(p.has_grad is not self._kind.adds for p in half.trained):
            raise RuntimeError("another backward pass came before, or none, than was foreseen")
        if not self._is_launched:
            for graph in half.graphs:
                graph.launch()
        for p in half.trained:
            p.has_grad = True


class _Half:
    """The graphs of a backward pass or of a half of it; none if nothing is computed.

    trained   the parameters whose gradients they compute
    """

    def __init__(self, graphs: Sequence[Graph], leaves: Iterable[Any]) -> None:
        self.graphs = graphs
        self.trained = frozenset(leaf for leaf in leaves if isinstance(leaf, Parameter))


@contextmanager
def _as_current(current: Pass) -> Iterator[None]:
    """A context in which a pass is captured, with `current` as its Pass."""
    with variables_set((current_pass, current)), on_tape(lambda: None):
        yield
