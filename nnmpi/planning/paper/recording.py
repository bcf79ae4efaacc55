"""Records the passes of a pipeline stage: runs the layers of a rank once, on arrays without data,
and logs their exchanges and memory.

Layers that read values, for example to route tokens to experts, run on small random arrays instead.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from nnmpi.arrays import meta
from nnmpi.arrays.backend import CPU, META, Array, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.nn.graph import Arguments, mapped
from nnmpi.nn.parameter import inverse
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.program import ops
from nnmpi.parallel.step.ports import JoinedOutputs, joined
from nnmpi.parallel.step.scaling import widened
from nnmpi.planning.paper import repeated
from nnmpi.planning.paper.pass_memory import CalledMemory, PassArrays, TracedMemory
from nnmpi.planning.paper.repeated import Section
from nnmpi.planning.paper.sharded_model import ShardedModel, recorded_rank, shard_key, sharded_model
from nnmpi.planning.paper.stage import (
    NO_BYTES,
    PassBytes,
    PassEvents,
    RecordedStats,
    TensorShape,
    placeholder,
)
from nnmpi.schedules.op import Kind


class NullOpRecorder:
    """An object in the place of the recorder that autograd ops call while a model is traced. It
    ignores all calls, but while it is set, layers run as they do in tracing."""

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Any
    ) -> None:
        """Called after each autograd op `op`, with its arguments, options and result y; does
        nothing."""

    def enter(self, context: str) -> None:
        """Called at the start of a block such as `with no_grad()`; does nothing."""

    def note_older(self, t: Any) -> None:
        """Called before an op reads a tensor t whose memory was changed in place through another
        tensor, such as a view of t; does nothing."""

    def run_again(self, function: Callable[[], Any]) -> Any:
        """Called with a function whose activations are not kept (checkpointing): calls it, and
        returns its result."""
        return function()


NO_OPS_RECORDED = NullOpRecorder()


def passes(a: Arrangement, rank: int, stage: int, samples: int) -> PassEvents:
    """Returns what a rank does and needs in the passes of pipeline stage `stage`, over a
    micro-batch of `samples` samples: the collectives and messages of each pass, and bytes of
    memory. They were recorded while the layers ran once on arrays without data, and sent
    nothing."""
    at = a.mesh.coordinates(recorded_rank(a, rank, stage, samples))
    where = [at[axis] for axis in LOCAL_SHAPES]
    return _passes(a, stage, samples, a.sums_by(a.mesh.group(rank, "tp")), *where)


@cached
def _passes(a: Arrangement, stage: int, samples: int, sums_by: str, *where: int) -> PassEvents:
    """Returns the PassEvents of pipeline stage `stage` over a micro-batch of `samples` samples on
    one rank: the exchanges of its passes, bytes of activations, and shapes of outputs. The stage
    runs once on arrays without data. Of equal sections, such as transformer blocks, only one runs,
    and the records of the sections are put together.

    where     coordinates along the axes of LOCAL_SHAPES (cp and tp, which cut activations), in its
              order: they stand for the rank, since only these decide what a stage records
    sums_by   the name of the all-reduce of activations, "shared" or "ring": results with different
              names are cached separately
    """
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
        return _cached_passes(a, rank, samples, _has_halves(a), repeated.whole(a, stage))
    finally:
        recording.reset(token)


def section_bytes(
    a: Arrangement, stage: int, samples: int, halves: bool
) -> tuple[list[int], list[PassBytes]]:
    """Records the passes of a stage's sections (parts of its layers, such as one transformer block)
    on the last rank.

    Returns two lists: the number of the first graph node of each section, and the PassBytes of each
    section for `samples` samples. With `halves`, the backward pass is also recorded in its two
    halves, I (gradients of inputs) and W (of weights).
    """
    rank, cut = a.mesh.size - 1, repeated.in_sections(a)
    parts = repeated.all_sections(a, stage)
    token = recording.set(NO_OPS_RECORDED)
    try:
        nbytes = [_cached_passes(cut, rank, samples, halves, part).nbytes for part in parts]
    finally:
        recording.reset(token)
    return [cut.division.stages[part.number].nodes.start for part in parts], nbytes


@cached
def _has_halves(a: Arrangement) -> bool:
    """True if the schedule runs backward passes in two halves, I (inputs) and W (weights), as
    zero-bubble schedules do."""
    count, pp = min(a.config.micro_batches, a.config.batch_size), a.mesh.axes["pp"]
    ranks = a.mesh.group(0, "pp") if pp > 1 else ()
    return any(Kind.I in map(itemgetter(0), ops(a, rank, count)) for rank in ranks)


def _cached_passes(
    a: Arrangement, rank: int, samples: int, halves: bool, part: Section
) -> PassEvents:
    """Returns the recorded passes (forward, backward, ...) of the pipeline stage, or section of a
    stage, that `part` describes, for `rank` and `samples` samples: their exchanges and the bytes of
    their activations.

    They are recorded once, and cached for all arrangements that divide these layers in the same
    way. With `halves`, the backward pass is also recorded in its two halves, I (gradients of
    inputs) and W (of weights).
    """
    adds = a.config.micro_batches > 1  # gradients to those of the first micro-batch
    rank, cache = recorded_rank(a, rank, part.number, samples), a.graph.cache
    key = *shard_key(a, rank), part.signature, samples, adds, halves
    if key not in cache:
        cache[key] = _recorded_with_few_values(a, rank, part.number, samples, halves)
    known: PassEvents = cache[key]
    return known


def _recorded_with_few_values(
    a: Arrangement, rank: int, stage: int, samples: int, halves: bool
) -> PassEvents:
    """Records the passes of a stage on arrays with as little data as possible: with none; if layers
    read values, with those of integers (such as tokens) only; otherwise with all values, on the
    CPU. With `halves`, I and W (the halves of a backward pass) are recorded too."""
    for reads in False, True:
        with suppress(NumbersReadError):
            return recorded(a, rank, stage, samples, META, halves, reads)
    return recorded(a, rank, stage, samples, CPU, halves)


def recorded(
    a: Arrangement,
    rank: int,
    stage: int,
    samples: int,
    on: Backend,
    halves: bool = True,
    reads: bool = False,
) -> PassEvents:
    """Runs the forward and backward pass (F and B) of a pipeline stage, and records them; with
    `halves`, also the two halves of the backward pass: I, the gradients of inputs, and W, those of
    weights.

    With `reads`, integers such as tokens and classes have values even on META, where arrays have no
    data.
    """
    with np.errstate(all="ignore"):
        cut = sharded_model(a, rank, on)
        return _Recording(a, cut, rank, stage, samples, reads or on is not META).passes(halves)


class _Recording:
    """Runs the passes of one stage on one rank, over `samples` samples, and records their exchanges
    and memory; nothing is sent.

    cut           the model with only this rank's parts of the layers
    has_integers  True if arrays of integers, such as tokens, have values
    """

    def __init__(
        self,
        a: Arrangement,
        cut: ShardedModel,
        rank: int,
        stage: int,
        samples: int,
        has_integers: bool,
    ) -> None:
        self._has_integers = has_integers
        self._a, self._cut, self._rank, self._stage, self._samples = a, cut, rank, stage, samples
        self._is_last = stage == len(a.stages) - 1
        is_whole = len(a.stages) == 1
        self._module = cut.model if is_whole else cut.segment(a.graph, a.division.stages[stage])

    def passes(self, halves: bool) -> PassEvents:
        """Runs the forward and backward pass of the stage, which sends nothing; with `halves` the
        backward pass also in its halves, I (gradients of inputs) and W (of weights). Returns the
        record: the collectives and messages of each pass, and the bytes of memory that the passes
        need."""
        events, needs_gradient = self._run(in_halves=False)
        taken = events.nbytes
        if Kind.B not in taken.more:
            return events
        if not needs_gradient:  # all of backward is the second half
            return events._replace(nbytes=_in_second_half(taken), weights=events.backward)
        if not halves:
            return events
        parts, _ = self._run(in_halves=True)
        taken = taken._replace(left=parts.nbytes.left, more={**parts.nbytes.more, **taken.more})
        return events._replace(inputs=parts.inputs, weights=parts.weights, nbytes=taken)

    def _run(self, in_halves: bool) -> tuple[PassEvents, bool]:
        """Runs a forward and a backward pass; the latter in halves (gradients of inputs, then of
        parameters) if `in_halves`. Returns (the record of the passes: their exchanges and bytes;
        whether an input requires a gradient)."""
        recorder, lasting = self._cut.recorder, self._lasting()
        with CalledMemory() if self._cut.on is META else TracedMemory() as memory:
            recorder.drain()
            memory.mark()
            root, inputs = self._forward()
            outputs = root.parts if isinstance(root, JoinedOutputs) else (root,)
            events = PassEvents([TensorShape.of(t) for t in outputs], NO_BYTES, recorder.drain())
            results = [] if self._is_last else [t.operand for t in outputs]
            memory.mark(results)
            leaves = [x for x in inputs if x.requires_grad]
            if root.requires_grad:
                seeds = [self._cut.on.xp.ones_like(t.array) for t in outputs]
                seed = root.seed(seeds) if isinstance(root, JoinedOutputs) else seeds[0]
                if in_halves:
                    rest = root.backward(seed, until=leaves)
                    memory.mark(_taken_gradients(seeds, leaves))
                    events = events._replace(inputs=recorder.drain())
                    rest.finish()
                    memory.mark()
                    events = events._replace(weights=recorder.drain())
                else:
                    root.backward(seed)
                    memory.mark(_taken_gradients(seeds, leaves))
                    events = events._replace(backward=recorder.drain())
            given = [t.operand for t in inputs]
            nbytes = memory.bytes(PassArrays(lasting, given, results))
        return events._replace(nbytes=nbytes), bool(leaves)

    def _lasting(self) -> list[Any]:
        """Returns the stage's arrays that exist before and after passes: parameters, their
        gradients, and buffers."""
        parameters = [*self._module.parameters()]
        arrays = [p.operand for p in parameters]
        arrays += [p.grad_memory for p in parameters if p.requires_grad]
        return [*arrays, *(t.operand for t in self._module.buffers())]

    def _forward(self) -> tuple[Any, list[Tensor]]:
        """Runs the forward pass of the stage; returns (the tensor from which the backward pass
        starts, the tensors that the stage got as input)."""
        a, cut = self._a, self._cut
        for p in cut.variables:  # record the usual case: gradients are added to earlier ones
            p.has_grad = a.config.micro_batches > 1
        args, named = self._arguments()
        stats: Any = RecordedStats(cut.recorder)
        of_pass = Pass(0, np.arange(self._samples), stats, batch=self._samples)
        token = current_pass.set(of_pass)
        try:
            y = self._module(*args, **named)
            if self._is_last:
                y = self._loss(y)
        finally:
            current_pass.reset(token)
        given = [x for x in (*args, *named.values()) if isinstance(x, Tensor)]
        return y if self._is_last else joined(y), given

    def _arguments(self) -> Arguments:
        """Returns the arguments of the stage: samples for the first stage, otherwise tensors such
        as the previous stage sends."""
        a, on = self._a, self._cut.on
        if not self._stage:
            given: Arguments = mapped(self._own, a.graph.source.inputs(self._samples))
            return given
        at, takes = a.mesh.coordinates(self._rank), a.division.stages[self._stage].takes
        tensors = list[Tensor]()
        for edge, shape in ((a.graph.edges[e], a.local_shape(e, self._samples, at)) for e in takes):
            memory = placeholder(on, [shape[k] for k in edge.order], edge.dtype)
            tensors.append(Tensor(memory.transpose(inverse(edge.order)), edge.requires_grad))
        return tuple(tensors), {}

    def _own(self, x: Any) -> Any:
        """Returns this rank's positions of an argument of the model, if sequences are cut along cp;
        otherwise the argument unchanged."""
        if not isinstance(x, Tensor):
            return x
        positions = self._a.own_positions(self._rank)
        return Tensor(
            self._placed(x.array if positions is None else x.array.take(positions, axis=1))
        )

    def _placed(self, array: Array) -> Array:
        """Returns a sample or label as an array for layers: without values, or with values if the
        layers may read them."""
        has_values = self._has_integers and not is_float(array.dtype)
        return array if self._cut.on is not META or has_values else meta.like(array)

    def _loss(self, scores: Tensor) -> Tensor:
        """Returns the loss of the scores of the last stage, or the scores themselves if there are
        no labels."""
        a = self._a
        source, positions = a.graph.source, a.own_positions(self._rank)
        if source.labels is None:  # a model alone
            return scores
        labels = source.labels(self._samples)
        if positions is not None and labels.ndim > 1:
            labels = labels.take(positions, axis=1)
        objective = source.objective(a.sharding, self._cut.layout.axis)
        loss: Tensor = objective.loss(widened(scores), self._placed(labels))
        return loss


def _taken_gradients(seeds: list[Any], inputs: Sequence[Tensor]) -> list[Any]:
    """Returns the arrays of gradients that a pass leaves behind: those of the outputs, `seeds`, and
    those of the inputs. Removes them from `seeds` and from the input tensors, as in a run, where a
    stage hands gradients on when the pass ends."""
    gradients = [*seeds, *(x.grad_array for x in inputs if x.grad_array is not None)]
    seeds.clear()
    for x in inputs:
        x.grad_array = None
    return gradients


def _in_second_half(taken: PassBytes) -> PassBytes:
    """Returns the bytes of the first stage in a schedule that divides backward passes into I
    (gradient of the input) and W (gradients of parameters); `taken` has those of an undivided
    backward pass. The first stage needs no gradient of its input: I does nothing, and W is the
    whole backward pass. Until W the stage keeps its activations and the gradient of its output."""
    more = {Kind.I: taken.out, Kind.W: max(taken.more[Kind.B] - taken.out, 0)}
    return taken._replace(left=taken.kept + taken.out, more={**taken.more, **more})
