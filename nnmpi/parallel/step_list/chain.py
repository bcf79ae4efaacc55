"""Chain: the part of a model on a rank as units, with the buckets of its parameters.

    stage 0   [ embedding | block | block ]      stage 2   [ block | head ]       on rank 0 of 2
    units       0           1       2                        3       4
    buckets     0           0, 1    1                        2       0, 2         (0 is tied)

A unit is a segment of the graph. One begins where an operation has to come between: where other
buckets are used than before. Several tensors may cross from one unit to the next.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import groupby, pairwise
from math import prod
from typing import NamedTuple

from nnmpi.nn.fusion import SMALL
from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, Bucket
from nnmpi.parallel.step_list.op import NONE


class Unit(NamedTuple):
    """A segment of the graph within a stage.

    buckets          those of the parameters that it uses, in the order of memory
    takes_gradient   whether its backward pass computes a gradient of its input
    """

    stage: int
    nodes: range
    variables: frozenset[int]
    buckets: tuple[int, ...]
    takes_gradient: bool


@dataclass(frozen=True)
class Chain:
    """The units of a rank, stage by stage, and its buckets in the order of memory.

    place   the rank along pp of each stage of the pipeline
    tied    the variable of each bucket whose parameter stages of other ranks have too
    """

    units: tuple[Unit, ...]
    buckets: tuple[Bucket, ...]
    place: tuple[int, ...]
    tied: Mapping[int, int]

    @cached_property
    def of_stage(self) -> Mapping[int, range]:
        """The units of each stage on this rank."""
        ends = [u for u, (a, b) in enumerate(pairwise(self.units), 1) if a.stage != b.stage]
        bounds = pairwise([0, *ends, len(self.units)])
        return {self.units[a].stage: range(a, b) for a, b in bounds}

    @cached_property
    def users(self) -> Sequence[Sequence[int]]:
        """The units that use each bucket."""
        numbered = [*enumerate(self.units)]
        return [[u for u, unit in numbered if b in unit.buckets] for b in range(len(self.buckets))]

    def neighbours(self, u: int, away: int) -> tuple[int, int]:
        """Returns the unit in front of u (`away` is -1) or behind it (+1), and the boundary that
        lies between on the way to another rank; NONE for what does not exist.

        A boundary has the number of the stage behind it.
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
    """Returns the chain of a rank."""
    held = a.model_on(rank)
    buckets = held.inside()
    of = {v.variable: b for b, inside in enumerate(buckets.values()) for v in inside}
    stages = a.division.of_rank(a.mesh.coordinates(rank)["pp"])
    entering = a.graph.crossings()
    units = [u for s, part in stages.items() for u in _units(a, s, part.nodes, of, entering)]
    tied = {
        b: held.trained[bucket.tied].variable
        for b, bucket in enumerate(buckets)
        if bucket.tied != NOT_TIED
    }
    return Chain(tuple(units), (*buckets,), a.division.place, tied)


def _units(
    a: Arrangement,
    stage: int,
    nodes: range,
    bucket_of: Mapping[int, int],
    entering: Sequence[Sequence[int]],
) -> Iterator[Unit]:
    """Yields the units of a stage; `entering` are the edges that cross in front of each node."""
    graph = a.graph
    inside = [
        unit
        for unit in partition.units(graph, tuple(a.division.begins))
        if nodes.start <= unit.nodes.start < nodes.stop
    ]

    def used(unit: partition.Unit) -> set[int]:
        return {bucket_of[v] for v in unit.variables if v in bucket_of}

    groups, is_swapped = list[partition.Unit](), a.residences is not None
    for unit in partition.joined(graph, [*_rows(graph, inside)], by_one_tensor=False):
        # nothing has to come between units if the second one needs no other buckets
        if groups and (is_swapped or not used(groups[-1]) or used(unit) <= used(groups[-1])):
            groups[-1] = groups[-1].with_following(unit)
        else:
            groups.append(unit)
    for group in groups:
        edges = entering[group.nodes.start] if group.nodes.start else ()
        takes_gradient = any(graph.edges[e].requires_grad for e in edges)
        buckets = tuple(sorted(used(group)))
        yield Unit(stage, group.nodes, group.variables, buckets, takes_gradient)


def _rows(graph: Graph, units: Iterable[partition.Unit]) -> Iterator[partition.Unit]:
    """Yields units, in which small Linear layers in a row, which run as one op, are one."""
    for is_linear, run in groupby(units, lambda unit: unit.layers in LINEARS):
        row = [*run]
        shapes = [graph.variables[v].shape for unit in row for v in unit.variables]
        weights = sum(prod(shape) for shape in shapes if len(shape) > 1)
        if is_linear and weights <= SMALL:
            yield reduce(partition.Unit.with_following, row)
        else:
            yield from row


LINEARS = ("Linear",), ("Linear", "ReLU")
