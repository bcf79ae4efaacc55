"""ShardedModel: a model with only one rank's parts of the layers, whose passes are recorded."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from nnmpi.addons.planning.paper.comm import SumsMemory, layout_on_paper
from nnmpi.addons.transformer.context.layers import shard_positions
from nnmpi.addons.transformer.context.ring import Ring
from nnmpi.addons.transformer.context.sequence_cut import sequences_of
from nnmpi.arrays.backend import META
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import bounds as parts_of
from nnmpi.nn.graph import Graph
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import inverse
from nnmpi.nn.recompute import recompute
from nnmpi.nn.segment import segment
from nnmpi.nn.single_store import SingleStore
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.division import StagePart
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.tensor.parallelize import rebuild
from nnmpi.parallel.tensor.ways import SAMPLE_CUT

AMONG_ALL = {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER}
"""Collectives in which ranks along tp do the same: one recording serves all."""


class SharedMemoryStore(SingleStore):
    """The memory of one parameter in a model whose passes are recorded. It claims that others share
    this memory, as in a run with ZeRO 2 or 3, so that ops call the same functions as there."""

    rotates = is_shared = True


class ShardedModel(NamedTuple):
    """A model with one rank's parts of the layers, on arrays without data.

    layout     the communicators by which its layers know their axis and place
    segments   a cache, a dict: (nodes, parameters) of a stage -> a module with its layers
    """

    model: Module
    layout: Layout
    segments: dict[tuple[range, tuple[int, ...]], Module]

    def segment(self, graph: Graph, stage: StagePart) -> Module:
        """Returns a module with the layers of a stage."""
        key = stage.nodes, stage.variables
        if key not in self.segments:
            self.segments[key] = segment(self.model, graph, *key)
        return self.segments[key]


def shard_key(a: Arrangement, rank: int) -> tuple[Any, ...]:
    """Returns the cache key of a rank's layers, equal for equal parts."""
    parts, at = (a.sharding.layers, sequences_of(a.sharding)), a.mesh.coordinates(rank)
    # the objects must outlive the keys, else another object could get the same id
    a.graph.cache[*map(id, parts)] = parts
    sums = a.sums_dtype, a.sums_by(a.mesh.group(rank, "tp"))
    how = a.dtype, a.config.recompute
    return *map(id, parts), *how, *sums, *(at[axis] for axis in LOCAL_SHAPES)


def sharded_model(a: Arrangement, rank: int) -> ShardedModel:
    """Returns a rank's model, shared by all arrangements that divide layers in the same way."""
    cache, key = a.graph.cache, shard_key(a, rank)
    if key not in cache:
        cache[key] = _make(a, rank)
    cut: ShardedModel = cache[key]
    return cut


def _make(a: Arrangement, rank: int) -> ShardedModel:
    graph, model = a.graph, a.graph.source.make()
    layout = layout_on_paper(a, rank, SumsMemory(a, rank))
    if a.mesh.axes["cp"] > 1:
        shard_positions(model, graph, Ring(layout.axis["cp"], sequences_of(a.sharding)))
    if a.mesh.axes["tp"] > 1:
        rebuild(model, graph, a.sharding, layout.axis["tp"])
    recompute(model, graph, a.config.recompute)
    variables = {name: v for v, variable in enumerate(graph.variables) for name in variable.names}
    of_parameters = {p: variables[path] for path, p in model.named_parameters()}
    for p, v in of_parameters.items():
        memory = META.xp.empty([p.shape[k] for k in p.memory_axes], a.dtype)
        store = SharedMemoryStore if graph.variables[v].is_trained else SingleStore
        p.move(store(memory.transpose(inverse(p.memory_axes))), 0)
    model.convert_buffers(a.updated_dtype, META)
    model.train()
    return ShardedModel(model, layout, {})


def recorded_rank(a: Arrangement, rank: int, stage: int, samples: int) -> int:
    """Returns the first rank along tp whose parts of the stage's layers are as long, to record."""
    tp = a.mesh.coordinates(rank)["tp"]
    return a.mesh.group(rank, "tp")[places_recorded(a, stage, samples)[tp]]


@cached
def places_recorded(a: Arrangement, stage: int, samples: int) -> Sequence[int]:
    """Returns a list: entry i is the first index along tp at which ranks have parts of the stage's
    layers that are as long as the parts at index i, so that one recording serves both.

    Index 0 is recorded separately: without data all tokens and classes are 0, and the ranks with
    index 0 own those.
    """
    sharding, stage_nodes = a.sharding, a.division.stages[stage].nodes
    places = range(a.mesh.axes["tp"])
    layers = [layer for layer in sharding.layers if layer.node in stage_nodes]
    collectives = {message.message.by for layer in layers for message in layer.sends}
    if sharding.owned.nodes or not collectives <= AMONG_ALL:
        return places
    nodes = [a.graph.nodes[k] for k in stage_nodes]
    edges = {e for node in nodes for e in (*node.inputs, *node.outputs)} & {*sharding.edges}
    variables = {v for node in nodes for v in node.variables} & {*sharding.variables}
    cuts = {sharding.edges[e] for e in edges} | {sharding.variables[v] for v in variables}
    all_bounds = {cut.bounds for cut in cuts} | {layer.bounds for layer in layers}
    first = dict[Any, int]()

    if SAMPLE_CUT in cuts:
        all_bounds.add(parts_of(samples, len(places)))

    def lengths(r: int) -> Any:
        return not r, *(bounds[r + 1] - bounds[r] for bounds in all_bounds if bounds)

    return [first.setdefault(lengths(r), r) for r in places]
