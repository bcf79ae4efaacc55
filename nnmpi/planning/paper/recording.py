"""Recorded passes of a stage: the layers of a rank run once, on arrays without data.

A model whose layers read values, for example to route tokens to experts, runs on small random
arrays instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from nnmpi.arrays import meta
from nnmpi.arrays.backend import CPU, META, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.nn.graph import Arguments, mapped
from nnmpi.nn.parameter import inverse
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.nn.saved_memory import nbytes, saved_memory
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.program import ops
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.step.ports import JoinedOutputs, joined
from nnmpi.parallel.step.scaling import widened
from nnmpi.planning.paper import repeated
from nnmpi.planning.paper.memory_meter import Meter, memory_meter
from nnmpi.planning.paper.repeated import Section
from nnmpi.planning.paper.sharded_model import ShardedModel, recorded_rank, shard_key, sharded_model
from nnmpi.planning.paper.stage import (
    PaperStage,
    PassBytes,
    PassEvents,
    RecordedStats,
    TensorShape,
    placeholder,
)
from nnmpi.schedules.op import Kind


class NullOpRecorder:
    """A recorder of autograd ops that ignores them; while it is set, layers run as when a model is
    traced."""

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Any
    ) -> None:
        """Ignores an op."""

    def enter_no_grad(self) -> None:
        """Ignores that a no_grad block begins."""


NO_OPS_RECORDED = NullOpRecorder()


def passes(a: Arrangement, rank: int, stage: int, samples: int) -> PassEvents:
    """The events and bytes of the passes of a stage over `samples` samples on a rank."""
    at = a.mesh.coordinates(recorded_rank(a, rank, stage, samples))
    where = [at[axis] for axis in LOCAL_SHAPES]
    return _passes(a, stage, samples, a.sums_by(a.mesh.group(rank, "tp")), *where)


@cached
def _passes(a: Arrangement, stage: int, samples: int, sums_by: str, *where: int) -> PassEvents:
    """Records the passes of a stage at these coordinates along the axes that cut activations."""
    at = dict(zip(LOCAL_SHAPES, where, strict=True))
    ranks = ((r, a.mesh.coordinates(r)) for r in a.mesh.group(0, *LOCAL_SHAPES))
    rank = next(r for r, place in ranks if all(place[axis] == i for axis, i in at.items()))
    # the caller may be under no_grad, as the first pass with --recompute is; this one needs a tape
    token = recording.set(NO_OPS_RECORDED)
    try:
        if parts := repeated.sections(a, stage):
            cut = repeated.in_sections(a)
            edges = (a.graph.edges[e] for e in a.division.stages[stage].takes)
            has_gradient = any(edge.requires_grad for edge in edges)
            halves = has_gradient and _has_halves(a)
            record = partial(_cached_passes, cut, rank, samples, halves)
            return repeated.joined_sections(parts, record, has_gradient)
        whole = repeated.whole(a, stage)
        passes, variables = _cached_passes(a, rank, samples, _has_halves(a), whole)
        return repeated.with_variables(passes, variables, whole.variables)
    finally:
        recording.reset(token)


def section_bytes(a: Arrangement, samples: int, halves: bool) -> tuple[list[int], list[PassBytes]]:
    """The first nodes of the sections of a model with one stage, and the bytes of their passes over
    `samples` samples on the last rank, with `halves` also of backward passes in two halves."""
    rank, cut = a.mesh.size - 1, repeated.in_sections(a)
    token = recording.set(NO_OPS_RECORDED)
    try:
        parts = [
            _cached_passes(cut, rank, samples, halves, part)[0].nbytes
            for part in repeated.all_sections(a, 0)
        ]
    finally:
        recording.reset(token)
    return [part.nodes.start for part in cut.division.stages], parts


@cached
def _has_halves(a: Arrangement) -> bool:
    """True if the schedule runs backward passes in two halves, I and W, as zero-bubble schedules
    do."""
    count, pp = min(a.config.micro_batches, a.config.batch_size), a.mesh.axes["pp"]
    ranks = a.mesh.group(0, "pp") if pp > 1 else ()
    return any(Kind.I in map(itemgetter(0), ops(a, rank, count)) for rank in ranks)


def _cached_passes(
    a: Arrangement, rank: int, samples: int, halves: bool, part: Section
) -> tuple[PassEvents, Sequence[int]]:
    """The recorded passes of a stage or of a section, cached for all arrangements that cut its
    layers in the same way, and the variables of the section that was recorded."""
    adds = a.config.micro_batches > 1  # gradients to those of the first micro-batch
    rank, cache = recorded_rank(a, rank, part.number, samples), a.graph.cache
    key = *shard_key(a, rank), part.signature, samples, adds, halves
    if key not in cache:
        try:
            passes = recorded(a, rank, part.number, samples, META, halves)
        except NumbersReadError:
            passes = recorded(a, rank, part.number, samples, CPU, halves)
        cache[key] = passes, part.variables
    known: tuple[PassEvents, Sequence[int]] = cache[key]
    return known


def recorded(
    a: Arrangement, rank: int, stage: int, samples: int, on: Backend, halves: bool = True
) -> PassEvents:
    """Runs the passes of a stage and records them: forward and backward, with `halves` also
    backward in two halves."""
    cut = sharded_model(a, rank, on)
    with memory_meter(on) as meter, np.errstate(all="ignore"):
        return _Recording(a, cut, rank, stage, samples, meter).passes(halves)


class _Recording:
    """Runs and records the passes of one stage."""

    def __init__(
        self, a: Arrangement, cut: ShardedModel, rank: int, stage: int, samples: int, meter: Meter
    ) -> None:
        self._a, self._cut, self._rank, self._stage, self._samples = a, cut, rank, stage, samples
        self._meter, self._is_last = meter, stage == len(a.stages) - 1
        is_whole = len(a.stages) == 1
        self._module = cut.model if is_whole else cut.segment(a.graph, a.division.stages[stage])

    def passes(self, halves: bool) -> PassEvents:
        """The events of the passes, and the bytes that they take."""
        recorder, meter = self._cut.recorder, self._meter
        recorder.take()
        start = meter.begin()
        root, inputs = self._forward()
        peak, forward = meter.peak() - start, recorder.take()
        outputs = root.parts if isinstance(root, JoinedOutputs) else (root,)
        shapes = [TensorShape.of(t) for t in outputs]
        taken = _bytes(inputs, outputs, self._is_last)
        taken = taken._replace(left=taken.kept, more={Kind.F: max(peak, taken.kept)})
        leaves = [x for x in inputs if x.requires_grad]
        del inputs, outputs
        recorder.take()  # drop the uses of parameters that looking for kept memory has recorded
        if not root.requires_grad:
            return PassEvents(shapes, taken, forward)
        more = self._more(lambda: root.backward(_seed(root, self._cut.on), on_leaf=self._on_leaf))
        backward, taken = recorder.take(), taken._replace(more={**taken.more, Kind.B: more})
        if not leaves:  # no input needs a gradient: all of backward is the second half
            return PassEvents(shapes, _in_second_half(taken), forward, backward, weights=backward)
        events = PassEvents(shapes, taken, forward, backward)
        return self._in_halves(events) if halves else events

    def _in_halves(self, events: PassEvents) -> PassEvents:
        """Adds to `events` those of the two halves of the backward pass, which are run after
        another forward pass."""
        recorder, meter, taken = self._cut.recorder, self._meter, events.nbytes
        root, inputs = self._forward()
        leaves = [x for x in inputs if x.requires_grad]
        del inputs
        recorder.take()
        second_half, start = list[Any](), meter.begin()
        seed = _seed(root, self._cut.on)
        second_half.append(root.backward(seed, until=leaves))
        del seed
        if isinstance(root, JoinedOutputs):
            root.seed(())  # the memory of a port, or of the next section
        for x in leaves:
            x.grad = None  # a stage sends it away before W runs, so it must not count there
        input_events, first = recorder.take(), meter.peak() - start
        left = taken.kept + meter.current() - start
        second = self._more(lambda: second_half.pop().finish(on_leaf=self._on_leaf))
        more = {**taken.more, Kind.I: first, Kind.W: second}
        taken = taken._replace(left=left, more=more)
        return events._replace(inputs=input_events, weights=recorder.take(), nbytes=taken)

    def _more(self, run: Callable[[], object]) -> int:
        """Runs a pass; returns by how many bytes its peak is above the memory at its begin."""
        start = self._meter.begin()
        run()
        return self._meter.peak() - start

    def _on_leaf(self, leaf: Any) -> None:
        if leaf in self._cut.variables:
            self._cut.recorder(PaperStage.ready, self._cut.variables[leaf])

    def _forward(self) -> tuple[Any, list[Tensor]]:
        """Runs the forward pass; returns the tensor from which backward starts, and the inputs."""
        a, cut = self._a, self._cut
        for p in cut.variables:  # record the usual case: gradients are added to earlier ones
            p.has_grad = a.config.micro_batches > 1
        args, named = _arguments(a, self._rank, self._stage, self._samples, cut.on)
        stats: Any = RecordedStats(cut.recorder)
        of_pass = Pass(0, np.arange(self._samples), stats, batch=self._samples)
        token = current_pass.set(of_pass)
        try:
            y = self._module(*args, **named)
            if self._is_last:
                y = _loss(a, self._rank, cut.layout, y, self._samples)
        finally:
            current_pass.reset(token)
        given = [x for x in (*args, *named.values()) if isinstance(x, Tensor)]
        return y if self._is_last else joined(y), given


def _bytes(given: Sequence[Tensor], outputs: Sequence[Tensor], is_last: bool) -> PassBytes:
    """The bytes that a forward pass keeps for its backward pass; a loss counts only with what its
    backward pass reads."""
    read, enters = saved_memory(outputs), _memory(given)
    out = {} if is_last else _memory(outputs)
    through = nbytes(memory for key, memory in out.items() if key in enters)
    out = {key: memory for key, memory in out.items() if key not in enters}
    inside = (memory for key, memory in read.items() if key not in enters and key not in out)
    of_input, of_output = (
        nbytes(memory for key, memory in read.items() if key in of) for of in (enters, out)
    )
    return PassBytes(
        nbytes(enters.values()), nbytes(inside), nbytes(out.values()), of_input, of_output, through
    )


def _memory(tensors: Iterable[Tensor]) -> dict[int, Any]:
    """The arrays that own the memory of these tensors, by id: views of one array count once."""
    memories = (meta.owner(t.operand) for t in tensors)
    return {id(memory): memory for memory in memories}


def _in_second_half(taken: PassBytes) -> PassBytes:
    """The bytes of a first stage, whose whole backward pass is in the second half: until then it
    keeps the gradient of its output."""
    more = {Kind.I: taken.out, Kind.W: max(taken.more[Kind.B] - taken.out, 0)}
    return taken._replace(left=taken.kept + taken.out, more={**taken.more, **more})


def _seed(root: Tensor, on: Backend) -> Any:
    """The gradient from which a backward pass starts: ones."""
    if isinstance(root, JoinedOutputs):
        return root.seed([on.xp.ones_like(t.data) for t in root.parts])
    return on.xp.ones_like(root.data)


def _arguments(a: Arrangement, rank: int, stage: int, samples: int, on: Backend) -> Arguments:
    """The arguments of a stage: samples for the first stage, otherwise tensors from the stage
    before."""
    if not stage:
        positions = a.own_positions(rank)

        def own(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            array = x.data if positions is None else x.data.take(positions, axis=1)
            return Tensor(meta.like(array) if on is META and is_float(array.dtype) else array)

        given: Arguments = mapped(own, a.graph.source.inputs(samples))
        return given
    at, takes = a.mesh.coordinates(rank), a.division.stages[stage].takes
    tensors = list[Tensor]()
    for edge, shape in ((a.graph.edges[e], a.local_shape(e, samples, at)) for e in takes):
        memory = placeholder(on, [shape[k] for k in edge.order], edge.dtype)
        tensors.append(Tensor(memory.transpose(inverse(edge.order)), edge.requires_grad))
    return tuple(tensors), {}


def _loss(a: Arrangement, rank: int, layout: Layout, scores: Tensor, samples: int) -> Tensor:
    """The loss of the scores that the last stage computes; the scores themselves if there are no
    labels."""
    source, positions = a.graph.source, a.own_positions(rank)
    if source.labels is None:  # a model alone
        return scores
    labels = source.labels(samples)
    if positions is not None and labels.ndim > 1:
        labels = labels.take(positions, axis=1)
    loss: Tensor = source.objective(a.sharding, layout.axis).loss(widened(scores), labels)
    return loss
