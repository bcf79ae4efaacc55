"""Sections: parts of a stage, such as one transformer block, of which equal ones are recorded once.

    stage     [ embedding | block | block | block | head ]
    recorded  [ embedding | block |               | head ]

A stage is cut into sections at the places that only one tensor crosses. The exchanges and the kept
bytes are the same as in a recording of the whole stage: a tensor between two sections is kept if
one of them reads it. A stage that begins or ends within a block receives or sends several tensors.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from nnmpi.addons.transformer.context.sequence_cut import sequences_of
from nnmpi.nn.graph import TensorRef, VariableRef, mapped
from nnmpi.nn.recompute import recomputed_with
from nnmpi.parallel.arrangement.arrangement import Arrangement, layers
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.division import Division, StagePart
from nnmpi.parallel.arrangement.partition import joined, units
from nnmpi.parallel.facts.passes import PassBytes, PassExchange
from nnmpi.schedules.op import Kind


class Section(NamedTuple):
    """A part of the model whose passes are recorded together: a section of a stage, or a whole
    stage.

    number      its index among those of the whole model; that of the stage if it is a whole one
    signature   the layers, tensors and parameters: equal ones make the same passes
    variables   the numbers of the parameters and buffers that it uses, in order
    """

    number: int
    signature: Hashable
    variables: Sequence[int]


@cached
def in_sections(a: Arrangement) -> Arrangement:
    """Returns an arrangement like `a` in which each section of a stage is a stage of its own."""
    graph, cache, how = a.graph, a.graph.cache, a.config.recompute
    key = "sections", how
    if key not in cache:
        within = [recomputed_with(node, how) for node in graph.nodes]
        starts = (unit.nodes.start for unit in joined(graph, units(graph)))
        # what runs again is recorded as a whole
        cache[key] = {k for k in starts if not (k and within[k] and within[k] == within[k - 1])}
    begins = {stage.nodes.start for stage in a.division.stages} | cache[key]
    edges = [*sorted(begins), len(graph.nodes)]
    homes = {v: s for s, stage in enumerate(a.division.stages) for v in stage.variables}
    stages, crossings = list[StagePart](), graph.crossings()
    for start, stop in pairwise(edges):
        used = {v for k in range(start, stop) for v in graph.nodes[k].variables}
        takes = crossings[start] if start else graph.inputs
        stages.append(StagePart(0, range(start, stop), 0, takes, tuple(sorted(used & {*homes}))))
    return replace(a, division=Division(tuple(stages)))


@cached
def all_sections(a: Arrangement, stage: int) -> list[Section]:
    """Returns the sections of a stage in order: an embedding, each block."""
    cut, nodes = in_sections(a), a.division.stages[stage].nodes
    parts = enumerate(cut.division.stages)
    return [_cached_section(cut, i) for i, part in parts if part.nodes.start in nodes]


def sections(a: Arrangement, stage: int) -> list[Section]:
    """Returns the sections of a stage, to be recorded one by one; none if that would save no time,
    because too few of them are equal."""
    sections_of_stage = all_sections(a, stage)
    distinct = len({section.signature for section in sections_of_stage})
    return (
        sections_of_stage
        if len(sections_of_stage) > 2 * distinct and not a.sharding.owned.variables
        else []
    )


def whole(a: Arrangement, stage: int) -> Section:
    """Returns a whole stage as one Section. Stages with equal signatures consist of equal sections
    in the same order, and use parameters several times in the same places."""
    parts = all_sections(a, stage)
    variables = [*dict.fromkeys(v for part in parts for v in part.variables)]
    places = {v: i for i, v in enumerate(variables)}
    rows = ((part.signature, tuple(map(places.get, part.variables))) for part in parts)
    return Section(stage, tuple(rows), variables)


def _cached_section(a: Arrangement, number: int) -> Section:
    """Returns stage `number` of an arrangement `in_sections`, made once for all arrangements that
    divide the layers in the same way."""
    part, cache, sharding = a.division.stages[number], a.graph.cache, a.sharding
    cuts = sharding.layers, sharding.edges, sharding.variables, sequences_of(sharding)
    cache[*map(id, cuts)] = cuts  # kept alive, else another object could get the same id
    key = *map(id, cuts), part.nodes.start, part.nodes.stop, part.variables
    if key not in cache:
        cache[key] = _section(a, number)
    section: Section = cache[key]
    return section._replace(number=number)


def _section(a: Arrangement, number: int) -> Section:
    """Makes the Section of a stage; its signature numbers tensors and parameters in the order of
    their use, so that equal sections have equal signatures."""
    graph, part, is_last = a.graph, a.division.stages[number], number == len(a.stages) - 1
    gives = graph.outputs if is_last else a.division.stages[number + 1].takes
    rings = sequences_of(a.sharding).rings
    edges, variables = dict[int, int](), dict[int, int]()

    def numbered(leaf: Any) -> Any:
        if type(leaf) is TensorRef:
            return TensorRef(edges.setdefault(leaf.edge, len(edges)))
        if type(leaf) is VariableRef:
            return VariableRef(variables.setdefault(leaf.variable, len(variables)))
        return leaf

    mapped(numbered, tuple(map(TensorRef, part.takes)))
    rows: list[Any] = [number == 0, is_last]
    for k in part.nodes:
        node, layer = graph.nodes[k], layers(a).get(k)
        mapped(numbered, tuple(map(VariableRef, node.variables)))
        rows.append(node.note and node.name)  # a module that is one node is equal to itself only
        rows.append((node.layer, node.op, node.kind, sorted(node.settings.items())))
        rows.append((mapped(numbered, node.arguments), mapped(numbered, node.result)))
        rows.append(
            (layer and layer._replace(node=0, path="", why=""), k in a.sharding.partial_gradients)
        )
        rows.append((k in rings, tuple(map(variables.get, node.variables))))
    mapped(numbered, tuple(map(VariableRef, part.variables)))
    rows.append(mapped(numbered, tuple(map(TensorRef, gives))))
    rows += [_edge(a, e, edges) for e in edges] + [_variable(a, v) for v in variables]
    calls = [call for call in graph.calls if call.nodes.start in part.nodes]
    rows += [(call.layer, call.nodes.start - part.nodes.start, len(call.nodes)) for call in calls]
    return Section(number, repr(rows), [*variables])


def _edge(a: Arrangement, e: int, numbers: Mapping[int, int]) -> tuple[Any, ...]:
    edge, sequences = a.graph.edges[e], sequences_of(a.sharding)
    memory = numbers.get(edge.memory, -1)
    return edge._replace(memory=memory), a.sharding.edges.get(e), sequences.axes.get(e)


def _variable(a: Arrangement, v: int) -> tuple[Any, ...]:
    variable = a.graph.variables[v]
    return variable[1:], a.sharding.variables.get(v), v in a.sharding.partial_gradients


def joined_exchanges(
    parts: Sequence[Mapping[Kind, Mapping[PassExchange, int]]], has_gradient: bool
) -> dict[Kind, Mapping[PassExchange, int]]:
    """Returns the exchanges of consecutive sections added up, by kind of pass. Unless the stage's
    input requires a gradient, all of its backward pass is W."""
    joined = dict[Kind, Counter[PassExchange]]()
    for part in parts:
        for kind, exchanges in part.items():
            joined.setdefault(kind, Counter()).update(exchanges)
    return {**joined} if has_gradient else {**joined, Kind.W: joined[Kind.B]}


def joined_bytes(parts: Sequence[PassBytes], has_gradient: bool) -> PassBytes:
    """Returns the bytes of a whole stage's passes, computed from those of its consecutive sections.

    In the code, `held[i]` is what the sections before i keep when i begins, without the input of i,
    and `outs[i]` is what is kept of the output of section i."""
    held, outs, enters = [0], list[int](), parts[0].enters
    out = out_read = 0  # of the section before; the input of the first one is counted apart
    for part in parts:
        passed = out if part.through else 0  # counted with the output that it is part of
        is_read = out_read > 0 or part.read > 0
        held.append(held[-1] + part.inside + (out - passed) * is_read)
        out, out_read = part.out + passed, part.out_read + passed * is_read
        outs.append(out * (out_read > 0))
    inside, outs[-1] = held[-1], out_read
    held[1:] = [enters + kept for kept in held[1:]]
    calls = sum(part.calls for part in parts)
    total = PassBytes(enters, inside, out, parts[0].read, out_read, calls=calls)
    more = {Kind.F: 0, Kind.B: 0, Kind.I: 0, Kind.W: 0}
    left = sum(part.left - part.kept for part in parts)
    after = total.kept + left
    behind = 0  # bytes that later sections add to what they keep, between the halves
    for i in reversed(range(len(parts))):
        part = parts[i]
        is_over = i + 1 < len(parts)  # the last section is: its seed, and an output that it has
        seed = out * is_over  # read, are held until the pass ends
        at = held[i + 1] + outs[i] + outs[-1] * is_over
        more[Kind.F] = max(more[Kind.F], held[i] + part.more.get(Kind.F, 0))
        more[Kind.B] = max(more[Kind.B], at + seed - total.kept + part.more.get(Kind.B, 0))
        more[Kind.I] = max(more[Kind.I], behind + seed + part.more.get(Kind.I, 0))
        behind += part.left - part.kept
        more[Kind.W] = max(more[Kind.W], at + left - behind - after + part.more.get(Kind.W, 0))
    if not has_gradient:
        more |= {Kind.I: total.out, Kind.W: max(more[Kind.B] - total.out, 0)}
        return total._replace(left=total.kept + total.out, more=more)
    return total._replace(left=after, more=more)
