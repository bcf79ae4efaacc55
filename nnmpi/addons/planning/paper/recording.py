"""Records the passes of a pipeline stage of a rank, as a run would: as lists of calls on arrays
without data, in which exchanges are calls too. Layers that read values get arrays with values: of
integers such as tokens or, if that is not enough, of small random numbers (`on_numbers.py`)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.planning.paper import repeated
from nnmpi.addons.planning.paper.on_numbers import TracedMemory, assumed_exchanges, integers, small
from nnmpi.addons.planning.paper.repeated import Section
from nnmpi.addons.planning.paper.sharded_model import (
    ShardedModel,
    recorded_rank,
    shard_key,
    sharded_model,
)
from nnmpi.addons.planning.rank_lists import whole_stages
from nnmpi.arrays import meta
from nnmpi.arrays.backend import META, Array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.autograd import Tensor
from nnmpi.nn.graph import Arguments, leaves, mapped
from nnmpi.nn.parameter import inverse
from nnmpi.nn.record import KeyedPass, StandIn, StatsOfRanks
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.facts.passes import PassBytes, PassExchange, bytes_of, exchanges_of
from nnmpi.parallel.step.objective import widened
from nnmpi.parallel.step.recorded_pass import record
from nnmpi.parallel.step.stage import joined
from nnmpi.schedules.op import Kind


class StageFacts(NamedTuple):
    """Facts about the passes of a pipeline stage over one micro-batch: the bytes of activations,
    and by kind of pass the exchanges that it makes, each with how often."""

    nbytes: PassBytes
    exchanges: Mapping[Kind, Mapping[PassExchange, int]]


def passes(a: Arrangement, rank: int, stage: int, samples: int) -> StageFacts:
    """Returns what a rank does and needs in a stage's passes."""
    at = a.mesh.coordinates(recorded_rank(a, rank, stage, samples))
    where = [at[axis] for axis in LOCAL_SHAPES]
    return _passes(a, stage, samples, a.sums_by(a.mesh.group(rank, "tp")), *where)


@cached
def _passes(a: Arrangement, stage: int, samples: int, sums_by: str, *where: int) -> StageFacts:
    """Returns the StageFacts of a stage over a micro-batch on one rank. Of equal sections only one
    is recorded, and the facts of all are put together.

    where     coordinates along cp and tp, LOCAL_SHAPES: only these decide what a stage records
    sums_by   the all-reduce of activations, "shared" or "ring", as a part of the cache's key
    """
    at = dict(zip(LOCAL_SHAPES, where, strict=True))
    ranks = ((r, a.mesh.coordinates(r)) for r in a.mesh.group(0, *LOCAL_SHAPES))
    rank = next(r for r, place in ranks if all(place[axis] == i for axis, i in at.items()))
    if parts := repeated.sections(a, stage):
        cut = repeated.in_sections(a)
        edges = (a.graph.edges[e] for e in a.division.stages[stage].takes)
        has_gradient = any(edge.requires_grad for edge in edges)
        halves = has_gradient and _has_halves(a)
        facts = [_cached_passes(cut, rank, samples, halves, part) for part in parts]
        nbytes = repeated.joined_bytes([of.nbytes for of in facts], has_gradient)
        made = repeated.joined_exchanges([of.exchanges for of in facts], has_gradient)
        return StageFacts(nbytes, made)
    return _cached_passes(a, rank, samples, _has_halves(a), repeated.whole(a, stage))


def section_bytes(
    a: Arrangement, stage: int, samples: int, halves: bool
) -> tuple[list[int], list[PassBytes]]:
    """Records the passes of a stage's sections on the last rank, with `halves` also I and W.
    Returns two lists: the first graph node of each section, and the PassBytes of each."""
    rank, cut = a.mesh.size - 1, repeated.in_sections(a)
    parts = repeated.all_sections(a, stage)
    nbytes = [_cached_passes(cut, rank, samples, halves, part).nbytes for part in parts]
    return [cut.division.stages[part.number].nodes.start for part in parts], nbytes


@cached
def _has_halves(a: Arrangement) -> bool:
    """True if backward passes have the halves I and W, as in zero-bubble schedules."""
    count, pp = min(a.config.micro_batches, a.config.batch_size), a.mesh.axes["pp"]
    lists = whole_stages(a, count) if pp > 1 else ()
    return any(op.kind is Kind.I for step in lists for op in step.passes)


def _cached_passes(
    a: Arrangement, rank: int, samples: int, halves: bool, part: Section
) -> StageFacts:
    """Returns the facts of the passes of `part`, recorded once for all arrangements that divide
    these layers in the same way; with `halves`, also those of I and W."""
    adds = a.config.micro_batches > 1  # gradients to those of the first micro-batch
    rank, cache = recorded_rank(a, rank, part.number, samples), a.graph.cache
    key = *shard_key(a, rank), part.signature, samples, adds, halves
    if key not in cache:
        cache[key] = _recorded_with_few_values(a, rank, part.number, samples, halves)
    known: StageFacts = cache[key]
    return known


def _recorded_with_few_values(
    a: Arrangement, rank: int, stage: int, samples: int, halves: bool
) -> StageFacts:
    """Records the passes of a stage with as little data as possible: none; if layers read values,
    that of integers (such as tokens) only; otherwise all."""
    for stand_in in meta.like, integers:
        with suppress(NumbersReadError):
            return recorded(a, rank, stage, samples, stand_in, halves)
    return recorded(a, rank, stage, samples, small, halves)


def recorded(
    a: Arrangement,
    rank: int,
    stage: int,
    samples: int,
    stand_in: StandIn = meta.like,
    halves: bool = True,
) -> StageFacts:
    """Records F and B of a pipeline stage, with `halves` also I and W, on arrays of `stand_in`."""
    stage_of_rank = _Stage(a, sharded_model(a, rank), rank, stage, samples)
    facts = stage_of_rank.facts(stand_in, halves=False)
    taken, made = facts
    if Kind.B not in taken.more:
        return facts
    if not stage_of_rank.takes_gradient:  # all of the backward pass is its second half
        return StageFacts(_in_second_half(taken), {**made, Kind.W: made[Kind.B]})
    if not halves:
        return facts
    parts = stage_of_rank.facts(stand_in, halves=True)
    more = {**parts.nbytes.more, **taken.more}
    taken = taken._replace(left=parts.nbytes.left, more=more)
    return StageFacts(taken, {**parts.exchanges, **made})


class _Stage:
    """A rank's stage whose passes are recorded; `cut` has its parts of layers."""

    def __init__(
        self, a: Arrangement, cut: ShardedModel, rank: int, stage: int, samples: int
    ) -> None:
        self._a, self._cut, self._rank, self._stage, self._samples = a, cut, rank, stage, samples
        self._is_last = stage == len(a.stages) - 1
        is_whole = len(a.stages) == 1
        self._module = cut.model if is_whole else cut.segment(a.graph, a.division.stages[stage])
        self._arguments = self._given()
        self._tensors = [x for x in leaves(self._arguments) if isinstance(x, Tensor)]

    @property
    def takes_gradient(self) -> bool:
        """True if the stage computes a gradient of its input."""
        return any(x.requires_grad for x in self._tensors)

    def facts(self, stand_in: StandIn, halves: bool) -> StageFacts:
        """Records the passes once, on arrays of `stand_in`; with `halves`, B as I and W."""
        memory = TracedMemory() if stand_in is small else None
        counts = repeat(2)  # of values in each BatchNorm, with which no error is raised
        samples, stats = np.arange(self._samples), StatsOfRanks(counts, tracks=True)
        current = KeyedPass.of(samples, self._samples, stats, stand_in)
        adds, edge = self._a.config.micro_batches > 1, memory.mark if memory else lambda: None
        arrays = [t._array for t in self._tensors] + self._labels()
        with assumed_exchanges(), memory or nullcontext():
            p = record((self._module,), self._forward, arrays, current, adds, halves, edge)
        inputs, outputs = p.inputs[: len(self._tensors)], () if self._is_last else p.outputs
        nbytes = memory.bytes(p, inputs, outputs) if memory else bytes_of(p, inputs, outputs)
        return StageFacts(nbytes, exchanges_of(p))

    def _forward(self, arrays: Sequence[Any]) -> tuple[Sequence[Tensor], Tensor]:
        """Returns the inputs that get a gradient, and the tensor where the backward pass starts."""
        pairs = zip(self._tensors, arrays, strict=False)
        inputs = [Tensor(array, t.requires_grad) for t, array in pairs]
        return [t for t in inputs if t.requires_grad], self._root(inputs, arrays[len(inputs) :])

    def _root(self, inputs: Sequence[Tensor], labels: Sequence[Any]) -> Tensor:
        """Returns the loss, or the joined outputs of the stage."""
        new: Iterator[Tensor] = iter(inputs)
        args, named = mapped(lambda x: next(new) if isinstance(x, Tensor) else x, self._arguments)
        y = self._module(*args, **named)
        if not self._is_last:
            return joined(y)
        if not labels:  # a model alone
            scores: Tensor = y
            return scores
        objective = self._a.graph.source.objective(self._a.sharding, self._cut.layout.axis)
        loss: Tensor = objective.loss(widened(y), labels[0])
        return loss

    # ---- its input

    def _given(self) -> Arguments:
        """Returns a stage's arguments: samples, or tensors of the stage before."""
        a = self._a
        if not self._stage:
            given: Arguments = mapped(self._own, a.graph.source.inputs(self._samples))
            return given
        at, takes = a.mesh.coordinates(self._rank), a.division.stages[self._stage].takes
        tensors = list[Tensor]()
        for edge, shape in ((a.graph.edges[e], a.local_shape(e, self._samples, at)) for e in takes):
            memory = META.xp.empty([shape[k] for k in edge.order], edge.dtype)
            tensors.append(Tensor(memory.transpose(inverse(edge.order)), edge.requires_grad))
        return tuple(tensors), {}

    def _own(self, x: Any) -> Any:
        """Returns this rank's positions of an argument, if cp cuts sequences."""
        return Tensor(self._positions(x.array)) if isinstance(x, Tensor) else x

    def _positions(self, array: Array) -> Array:
        positions = self._a.own_positions(self._rank)
        return array if positions is None or array.ndim < 2 else array.take(positions, axis=1)

    def _labels(self) -> list[Array]:
        """Returns [labels] for the last stage of a model with a loss, else []."""
        labels = self._a.graph.source.labels
        if not self._is_last or labels is None:
            return []
        return [self._positions(labels(self._samples))]


def _in_second_half(taken: PassBytes) -> PassBytes:
    """Returns the bytes of the first stage if B is divided into I and W. It needs no gradient of
    its input: I does nothing, and until W the stage keeps its activations and its output's
    gradient."""
    more = {Kind.I: taken.out, Kind.W: max(taken.more[Kind.B] - taken.out, 0)}
    return taken._replace(left=taken.kept + taken.out, more={**taken.more, **more})
