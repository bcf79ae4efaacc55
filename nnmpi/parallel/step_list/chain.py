"""Cuts the part of a model on one rank of an arrangement into units: makes its Chain.

    stage 0   [ embedding | block | block ]      stage 2   [ block | head ]       on rank 0 of 2
    buckets     0           1       2                        3       0
    units       0           1       2                        4       3            (0 is tied)

Bucket 0, the weight of the embedding, is tied: the head in stage 2 uses it too.

A unit is a part of a stage, usually one layer or block, whose pass runs without an operation on a
bucket in between. In a backward pass a unit ends where all gradients of its buckets are final; in a
forward pass, before a bucket of a later unit is read. So each bucket of a stage is a unit. Only if
buckets share memory, for gradients (ZeRO 2, 3) or parameters (ZeRO 3), the pass of a unit must use
no other buckets: then a unit is a segment of the graph, with all buckets that the segment uses.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from nnmpi.nn.parameter import Parameter
from nnmpi.nn.recompute import recomputed_with
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.division import StagePart
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, BucketSlice
from nnmpi.schedules.lists.chain import Chain, Unit
from nnmpi.schedules.op import NONE


@cached
def buckets_of(a: Arrangement, rank: int) -> tuple[BucketSlice, ...]:
    """Returns the buckets of a rank's parameters, in the order of their numbers."""
    return (*a.model_on(rank).inside(),)


@cached
def chain_of(a: Arrangement, rank: int) -> Chain:
    held = a.model_on(rank)
    buckets, entering = held.inside(), _crossings(a)
    of = {v.variable: b for b, inside in enumerate(buckets.values()) for v in inside}
    units = list[Unit]()
    for stage, part in a.division.of_rank(a.mesh.coordinates(rank)["pp"]).items():
        edges = entering[part.nodes.start] if stage else ()
        takes_gradient = any(a.graph.edges[e].requires_grad for e in edges)
        begin = len(units)
        for variables in _parts(a, part, of):
            used = sorted({of[v] for v in variables if v in of})
            units.append(Unit(stage, frozenset(variables), tuple(used), (), takes_gradient))
        if gathers_for_use(a) and (a.graph.again or a.config.recompute != "none"):
            units[begin:] = _with_repeated(a, units[begin:], _segments(a, part.nodes, of))
    tied = {
        b: held.trained[bucket.tied].variable
        for b, bucket in enumerate(buckets)
        if bucket.tied != NOT_TIED
    }
    lengths = (bucket.stop - bucket.start for bucket in buckets)
    return Chain(tuple(units), (*lengths,), a.division.place, tied)


@cached
def _crossings(a: Arrangement) -> Sequence[Sequence[int]]:
    return a.graph.crossings()


def _parts(
    a: Arrangement, part: StagePart, bucket_of: Mapping[int, int]
) -> Iterable[Collection[int]]:
    """Returns the variables of each unit; `bucket_of` maps trained parameters to buckets."""
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
    """True if buckets share memory and are gathered before use (ZeRO 3)."""
    return a.store.zero > 0 and not a.store.has_all_values and not a.graph.may_differ


def _segments(
    a: Arrangement, nodes: range, bucket_of: Mapping[int, int]
) -> Iterable[partition.Unit]:
    """Divides the graph of a stage into consecutive parts, each of which uses a bucket of
    parameters that the part before it does not use."""
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
    """Returns the units with `repeated` filled in: the buckets of other units that the backward
    pass of a unit reads, since it recomputes them. `segments` has the graph nodes of each."""
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


class StageUnits(NamedTuple):
    """The units of a stage, between which a forward or backward pass can stop.

    numbers     their numbers in the list of operations
    parameters  for each unit, those that no earlier unit of the stage uses: it is the first to read
                them, and the last to add to their gradients
    absent      for each unit, if parameters are gathered before each use (ZeRO 3): those of the
                stage that it does not use, which may not be in memory while it runs
    unrepeated  for each unit, those in `absent` that may not be in memory in its backward pass
                either: this pass may recompute other units, which needs their parameters
    """

    numbers: range
    parameters: Sequence[frozenset[Parameter]]
    absent: Sequence[frozenset[Parameter]] = ()
    unrepeated: Sequence[frozenset[Parameter]] = ()


def stage_units(
    a: Arrangement, rank: int, parameters: Sequence[Parameter]
) -> dict[int, StageUnits]:
    """Returns a dict: stage of a rank -> its units, given its trained parameters."""
    chain, held = chain_of(a, rank), a.model_on(rank)
    of_variable = {v.variable: p for v, p in zip(held.trained, parameters, strict=True)}
    members = [[of_variable[v.variable] for v in inside] for inside in held.inside().values()]
    by_stage = dict[int, StageUnits]()
    for stage, numbers in chain.of_stage.items():
        first = [min((u for u in users if u in numbers), default=NONE) for users in chain.users]
        of_unit = [
            frozenset(p for b, inside in enumerate(members) if first[b] == u for p in inside)
            for u in numbers
        ]
        others = _others(chain, numbers, members) if gathers_for_use(a) else ()
        by_stage[stage] = StageUnits(numbers, of_unit, *others)
    return by_stage


def _others(
    chain: Chain, numbers: range, members: Sequence[Sequence[Parameter]]
) -> tuple[Sequence[frozenset[Parameter]], Sequence[frozenset[Parameter]]]:
    """Returns the fields `absent` and `unrepeated` of the StageUnits of a stage, whose units have
    `numbers`; members[b] are the parameters in bucket b."""
    of_stage = {b for u in numbers for b in chain.units[u].buckets}
    absent, unrepeated = list[frozenset[Parameter]](), list[frozenset[Parameter]]()
    for unit in (chain.units[u] for u in numbers):
        buckets = of_stage.difference(unit.buckets)
        absent.append(frozenset(p for b in buckets for p in members[b]))
        buckets -= {*unit.repeated}
        unrepeated.append(frozenset(p for b in buckets for p in members[b]))
    return absent, unrepeated
