"""Chain: the part of a model on one rank, cut into units, and the buckets of its parameters.

    stage 0   [ embedding | block | block ]      stage 2   [ block | head ]       on rank 0 of 2
    buckets     0           1       2                        3       0
    units       0           1       2                        4       3            (0 is tied)

Bucket 0, the weight of the embedding, is tied: the head in stage 2 uses it too.

A bucket is a slice of the flat buffer of parameters that is summed or gathered by one collective. A
unit is a part of a stage, usually one layer or block, whose pass runs without an operation on a
bucket in between. In a backward pass a unit ends where all gradients of its buckets are final; in a
forward pass, before a bucket of a later unit is read. So each bucket of a stage is a unit. Only if
buckets share memory, for gradients (ZeRO 2) or parameters (ZeRO 3), the pass of a unit must use no
other buckets: then a unit is a segment of the graph, with all buckets that the segment uses.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

from nnmpi.nn.recompute import recomputed_with
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.division import StagePart
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, BucketSlice
from nnmpi.parallel.step_list.op import FORWARD, NONE, Op


class Unit(NamedTuple):
    """A unit: a part of a pipeline stage, usually one layer or block, whose passes are single
    operations in the list of a step.

    variables        the numbers of its parameters and buffers
    buckets          the buckets of its parameters, in the order of memory
    repeated         further buckets that its backward pass reads, because it recomputes other units
    takes_gradient   whether the backward pass of its stage computes the gradient of the input
    """

    stage: int
    variables: frozenset[int]
    buckets: tuple[int, ...]
    repeated: tuple[int, ...]
    takes_gradient: bool


@dataclass(frozen=True)
class Chain:
    """The units (parts of the model, usually layers) of one rank, stage by stage, and its buckets
    of parameters in the order of memory.

    place   the rank along pp of each stage of the pipeline
    tied    for each bucket of a parameter that stages of other ranks use too: the number of that
            parameter
    """

    units: tuple[Unit, ...]
    buckets: tuple[BucketSlice, ...]
    place: tuple[int, ...]
    tied: Mapping[int, int]

    @cached_property
    def of_stage(self) -> Mapping[int, range]:
        """For each pipeline stage that this rank has, the range of the numbers of its units (parts
        of the stage, usually layers)."""
        ends = [u for u, (a, b) in enumerate(pairwise(self.units), 1) if a.stage != b.stage]
        bounds = pairwise([0, *ends, len(self.units)])
        return {self.units[a].stage: range(a, b) for a, b in bounds}

    @cached_property
    def users(self) -> Sequence[Sequence[int]]:
        """For each bucket, the numbers of the units (parts of stages, usually layers) that use its
        parameters."""
        numbered = [*enumerate(self.units)]
        return [[u for u, unit in numbered if b in unit.buckets] for b in range(len(self.buckets))]

    def read_by(self, op: Op) -> Sequence[int]:
        """Returns the buckets of parameters that must be in memory for `op`, a pass of one unit
        (part of a stage, usually a layer)."""
        unit = self.units[op.at]
        return unit.buckets if op.kind in FORWARD else (*unit.repeated, *unit.buckets)

    def neighbours(self, u: int, away: int) -> tuple[int, int]:
        """Finds the unit (part of the model, usually a layer) before unit u (`away` = -1) or after
        it (`away` = +1), and returns (unit, boundary).

        If that unit is on this rank, boundary is NONE. If it is on another rank, unit is NONE, and
        boundary is the number of the stage that begins between the two. At an end of the model both
        are NONE.
        """
        stage = self.units[u].stage
        inside = self.of_stage[stage]
        if u + away in inside:
            return u + away, NONE
        other = stage + away
        if not 0 <= other < len(self.place):
            return NONE, NONE
        if other in self.of_stage:
            return self.of_stage[other][0 if away > 0 else -1], NONE
        return NONE, max(stage, other)


@cached
def chain_of(a: Arrangement, rank: int) -> Chain:
    """Returns the units (parts of the model, usually layers) and buckets of parameters of a
    rank."""
    held = a.model_on(rank)
    buckets, entering = held.inside(), a.graph.crossings()
    of = {v.variable: b for b, inside in enumerate(buckets.values()) for v in inside}
    units = list[Unit]()
    for stage, part in a.division.of_rank(a.mesh.coordinates(rank)["pp"]).items():
        edges = entering[part.nodes.start] if stage else ()
        takes_gradient = any(a.graph.edges[e].requires_grad for e in edges)
        begin = len(units)
        for variables in _parts(a, part, of):
            used = sorted({of[v] for v in variables if v in of})
            units.append(Unit(stage, frozenset(variables), tuple(used), (), takes_gradient))
        if gathers_for_use(a):
            units[begin:] = _with_repeated(a, units[begin:], _segments(a, part.nodes, of))
    tied = {
        b: held.trained[bucket.tied].variable
        for b, bucket in enumerate(buckets)
        if bucket.tied != NOT_TIED
    }
    return Chain(tuple(units), (*buckets,), a.division.place, tied)


def _parts(
    a: Arrangement, part: StagePart, bucket_of: Mapping[int, int]
) -> Iterable[Collection[int]]:
    """Returns, for each unit (part, usually a layer) of a stage, the numbers of its parameters and
    buffers in the graph. `bucket_of` is a dict: number of a trained parameter -> its bucket."""
    if a.strategy.of_stages:
        return [part.variables]
    if a.store.scatters or gathers_for_use(a):
        return [segment.variables for segment in _segments(a, part.nodes, bucket_of)]
    inside = defaultdict[int, list[int]](list)
    for v in part.variables:
        if v in bucket_of:
            inside[bucket_of[v]].append(v)
    return [inside[b] for b in sorted(inside)] or [part.variables]


def gathers_for_use(a: Arrangement) -> bool:
    """Returns True if buckets of parameters share memory and are gathered before each use (ZeRO
    3)."""
    return a.store.zero > 0 and not a.store.has_all_values and not a.graph.may_differ


def _segments(
    a: Arrangement, nodes: range, bucket_of: Mapping[int, int]
) -> Iterable[partition.Unit]:
    """Divides the graph of a stage, the nodes in `nodes`, into consecutive parts, each of which
    uses a bucket of parameters that the part before it does not use. `bucket_of` is a dict: number
    of a trained parameter -> its bucket."""
    graph = a.graph
    inside = [
        unit
        for unit in partition.units(graph, tuple(a.division.begins))
        if nodes.start <= unit.nodes.start < nodes.stop
    ]

    def used(unit: partition.Unit) -> set[int]:
        return {bucket_of[v] for v in unit.variables if v in bucket_of}

    groups = list[partition.Unit]()
    for unit in partition.joined(graph, inside, by_one_tensor=False):
        # nothing has to come between units if the second one needs no other buckets
        if groups and (not used(groups[-1]) or used(unit) <= used(groups[-1])):
            groups[-1] = groups[-1].with_following(unit)
        else:
            groups.append(unit)
    return groups


def _with_repeated(
    a: Arrangement, units: Sequence[Unit], segments: Iterable[partition.Unit]
) -> list[Unit]:
    """Returns the units (parts of a stage, usually layers) with their field `repeated` filled in.
    It has the buckets of other units whose parameters the backward pass of a unit reads, since it
    recomputes the activations of these units. `segments` has the graph nodes of each unit."""
    nodes, with_repeated = [{*segment.nodes} for segment in segments], [*units]
    paths = [recomputed_with(node, a.config.recompute) for node in a.graph.nodes]
    together = [{*again} for again in a.graph.again]
    together += [{*run} for path, run in groupby(range(len(paths)), paths.__getitem__) if path]
    for again in together:
        inside = [u for u, of_unit in enumerate(nodes) if of_unit & again]
        if inside:
            last = with_repeated[inside[-1]]
            buckets = {b for u in inside for b in units[u].buckets}.union(last.repeated)
            repeated = tuple(sorted(buckets.difference(last.buckets)))
            with_repeated[inside[-1]] = last._replace(repeated=repeated)
    return with_repeated
